import pytest

from ajet.core.errors import ConfigError
from ajet.core.update.settings import CorrectionSettings, CriticSettings, UpdateSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"kl_loss_type": "k4"},
        {"loss_agg_mode": "mean"},
        {"batch_layout": "trie"},
        {"lr_schedule": "step"},
        {"lr_schedule": "linear"},
        {"mini_batch_num": 0},
        {"max_tokens_per_micro_batch": 0},
        {"lr": -1.0},
        {"lr": float("nan")},
        {"clip_low": -0.1},
        {"temperature": 0.0},
        {"dual_clip": 1.0},
        {"policy_loss": "grpo"},
        {"ppo_epochs": 0},
        {"sapo_tau_neg": 0.0},
        {"lr_schedule": "cosine", "warmup_steps": 5, "total_steps": 5},
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        UpdateSettings(**wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (CriticSettings, {"cliprange_value": 0.0}),
        (CriticSettings, {"ppo_epochs": 0}),
        (CriticSettings, {"lr": -1.0}),
        (CorrectionSettings, {"level": "episode"}),
        (CorrectionSettings, {"mode": "mask"}),
        (CorrectionSettings, {"upper": 0.5, "lower": 0.5}),
    ],
)
def test_so_is_one_of_the_critic_and_of_the_correction(kind, wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))) as caught:
        kind(**wrong)
    assert "\n" not in str(caught.value)
