import pytest
from pydantic import ValidationError

from ajet.core.config.algorithm import AlgorithmConfig, CriticConfig, RolloutCorrection
from ajet.core.config.rollout import RolloutConfig
from ajet.core.config.trainer import OptimConfig, TrainerConfig
from ajet.core.errors import ConfigError
from ajet.core.update.settings import UpdateSettings


@pytest.mark.parametrize(
    ("section", "wrong"),
    [
        (TrainerConfig, {"kl_loss_type": "k4"}),
        (TrainerConfig, {"kl_loss_coef": -1.0}),
        (TrainerConfig, {"batch_layout": "trie"}),
        (TrainerConfig, {"mini_batch_num": 0}),
        (TrainerConfig, {"ppo_epochs": 0}),
        (TrainerConfig, {"max_tokens_per_micro_batch": 0}),
        (TrainerConfig, {"ulysses_sequence_parallel_size": 0}),
        (OptimConfig, {"lr_schedule": "step"}),
        (OptimConfig, {"lr": -1.0}),
        (OptimConfig, {"lr": float("nan")}),
        (OptimConfig, {"weight_decay": -0.1}),
        (RolloutConfig, {"temperature": 0.0}),
        (AlgorithmConfig, {"loss_agg_mode": "mean"}),
        (AlgorithmConfig, {"clip_low": -0.1}),
        (AlgorithmConfig, {"clip_high": -0.1}),
        (AlgorithmConfig, {"dual_clip": 1.0}),
        (AlgorithmConfig, {"policy_loss": "grpo"}),
        (AlgorithmConfig, {"sapo_tau_neg": 0.0}),
        (AlgorithmConfig, {"dppo_max_ratio": 0.0}),
        (AlgorithmConfig, {"rollout_correction": {"upper": 0.5, "lower": 0.5}}),
        (RolloutCorrection, {"level": "episode"}),
        (RolloutCorrection, {"mode": "mask"}),
        (CriticConfig, {"cliprange_value": 0.0}),
        (CriticConfig, {"ppo_epochs": 0}),
        (CriticConfig, {"lr": -1.0}),
    ],
)
def test_the_config_refuses_what_an_update_cannot_compute_with(section, wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        section.model_validate(wrong)


@pytest.mark.parametrize(
    "wrong", [{"lr_schedule": "linear"}, {"lr_schedule": "cosine", "warmup_steps": 5}]
)
def test_a_schedule_that_has_ended_before_the_warm_up_is_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match="lr_schedule") as caught:
        UpdateSettings(**wrong, total_steps=wrong.get("warmup_steps", 0))
    assert "\n" not in str(caught.value)
