"""What the config says of losses, the correction and the critic reaches the parts."""

from types import SimpleNamespace

import pytest
import torch

from ajet.core import assembly
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.update.settings import CorrectionSettings, ShardingSettings
from tests.fakes import chat_tokenizer


def config_with(**settings):
    overrides = [f"ajet.trainer_common.{name}={value}" for name, value in settings.items()]
    return load_config("tutorial/example_math_agent/demo.yaml", overrides)


def test_every_setting_of_the_loss_arrives():
    config = config_with(
        ppo_epochs=3,
        **{
            "algorithm.policy_loss": "sapo",
            "algorithm.sapo_tau_pos": 0.7,
            "algorithm.sapo_tau_neg": 1.4,
            "algorithm.use_kl_in_reward": "true",
            "algorithm.rollout_correction": "{level: turn, mode: reject, upper: 3.0, lower: 0.5}",
        },
    )
    found = assembly.update_settings(config)
    assert (found.policy_loss, found.ppo_epochs) == ("sapo", 3)
    assert (found.sapo_tau_pos, found.sapo_tau_neg) == (0.7, 1.4)
    assert found.keep_reference
    assert found.loss_scale_factor == config.ajet.data.max_response_length
    assert found.correction == CorrectionSettings("turn", "reject", 3.0, 0.5)


def test_a_schedule_ends_with_the_run():
    optim = "{lr_schedule: cosine, min_lr_ratio: 0.1}"
    found = assembly.update_settings(
        config_with(total_training_steps=5, mini_batch_num=2, ppo_epochs=3, optim=optim)
    )
    assert (found.lr_schedule, found.min_lr_ratio, found.total_steps) == ("cosine", 0.1, 30)


def test_every_setting_of_the_critic_arrives():
    config = config_with(
        critic="{lr: 0.1, cliprange_value: 0.4, ppo_epochs: 2, mini_batch_num: 3, grad_clip: 0.7, "
        "weight_decay: 0.2}",
        batch_layout="padded",
        max_tokens_per_micro_batch=99,
    )
    found = assembly.critic_settings(config)
    assert (found.lr, found.cliprange_value, found.weight_decay) == (0.1, 0.4, 0.2)
    assert (found.ppo_epochs, found.mini_batch_num, found.grad_clip) == (2, 3, 0.7)
    assert (found.batch_layout, found.max_tokens_per_micro_batch) == ("padded", 99)


def test_the_critic_starts_from_the_models_own_weights_whatever_became_of_the_policys():
    config = config_with()
    loaded = assembly.load_policy_model(config)
    start = {n: p.detach().clone() for n, p in loaded.model.named_parameters()}
    with torch.no_grad():
        for weight in loaded.model.parameters():
            weight.zero_()
    critic = assembly.make_critic(config, loaded)
    found = dict(critic.model.model.named_parameters())
    assert found.keys() == start.keys()
    assert all(torch.equal(found[name], weight) for name, weight in start.items())


def test_a_critic_of_other_tokens_is_refused_in_one_line():
    config = config_with(**{"critic.path": "embedded:math"})
    policy = SimpleNamespace(tokenizer=chat_tokenizer("qwen2_5"))
    with pytest.raises(ConfigError, match=r"critic\.path: .*other tokens") as caught:
        assembly.make_critic(config, policy)
    assert "\n" not in str(caught.value)


def test_every_setting_of_sharding_arrives():
    config = config_with(
        fsdp_config="{param_offload: false, activation_checkpointing: true, param_dtype: bfloat16, "
        "reshard_after_forward: false}",
        ulysses_sequence_parallel_size=2,
    )
    assert assembly.sharding_settings(config) == ShardingSettings(
        param_dtype="bfloat16",
        reshard_after_forward=False,
        cpu_offload=False,
        activation_checkpointing=True,
        ulysses_sequence_parallel_size=2,
    )


def test_the_dtype_of_sharding_follows_the_device():
    config = load_config("tutorial/example_math_agent/demo.yaml", ["ajet.model.device=cpu"])
    assert assembly.sharding_settings(config).param_dtype == "float32"


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_a_cluster_backbones_own_budget_of_tokens_goes_before_the_common_one(backbone):
    overrides = [f"{backbone}.trainer.max_token_len_per_gpu=77"]
    overrides += ["ajet.trainer_common.max_tokens_per_micro_batch=99"]
    for name, expected in ((backbone, 77), ("debug", 99)):
        config = load_config("tutorial/example_math_agent/demo.yaml", overrides, backbone=name)
        assert assembly.update_settings(config).max_tokens_per_micro_batch == expected
        assert assembly.critic_settings(config).max_tokens_per_micro_batch == expected
