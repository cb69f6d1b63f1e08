"""What the config says of losses, the correction and the critic reaches the parts."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from ajet import assembly
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.ranks.ranks import ONE_RANK, TorchRanks, connect, disconnect, join_ranks
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.update.settings import (
    CriticSettings,
    UpdateSettings,
)
from ajet.servers.settings import ServerSettings
from tests.fakes import chat_tokenizer
from tests.processes import free_port

SERVER = {"model_path": "m", "device": "cpu", "port": 1, "python": "p"}


def on_verl(**settings):
    return config_with("verl", **settings)


def config_with(backbone="debug", /, **settings):
    overrides = [f"ajet.trainer_common.{name}={value}" for name, value in settings.items()]
    return load_config("tutorial/example_math_agent/demo.yaml", overrides, backbone=backbone)


def test_a_schedule_ends_with_the_run():
    settings = config_with(total_training_steps=5, mini_batch_num=2, ppo_epochs=3)
    assert UpdateSettings.from_config(settings).total_steps == 30


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
    policy = SimpleNamespace(model=None, tokenizer=chat_tokenizer("qwen2_5"))
    with pytest.raises(ConfigError, match=r"critic\.path: .*another vocabulary") as caught:
        assembly.make_critic(config, policy)
    assert "\n" not in str(caught.value)


def test_the_dtype_of_sharding_follows_the_device():
    config = load_config("tutorial/example_math_agent/demo.yaml", ["ajet.model.device=cpu"])
    assert ShardingSettings.from_config(config).param_dtype == "float32"


def joined_alone(**fsdp):
    """What a run of one rank on the CPU learns on."""
    written = ", ".join(f"{name}: {value}" for name, value in fsdp.items())
    config = on_verl(fsdp_config=f"{{{written}}}")
    return join_ranks(config, 0, 1, host="127.0.0.1", port=free_port())


def sharded_alone():
    """The ranks of a process that is alone in its group, as on a single GPU."""
    connect(0, 1, host="127.0.0.1", port=free_port())
    return TorchRanks(ShardingSettings(param_dtype="bfloat16"))


def test_a_rank_alone_is_a_plain_process_on_the_cpu():
    assert joined_alone() is ONE_RANK


def test_a_rank_alone_that_recomputes_activations_is_a_plain_process_too():
    assert joined_alone(activation_checkpointing=True) is ONE_RANK


def test_a_rank_alone_that_computes_in_bfloat16_is_a_plain_process_whose_model_is_bfloat16():
    config = on_verl(fsdp_config="{param_dtype: bfloat16}")
    assert joined_alone(param_dtype="bfloat16") is ONE_RANK
    assert assembly.load_learning_model(config, ONE_RANK).model.dtype == torch.bfloat16
    assert ServerSettings.from_config(config, **SERVER).dtype == "bfloat16"


def test_a_rank_alone_in_a_group_is_sharded():
    try:
        ranks = sharded_alone()
        loaded = assembly.load_learning_model(config_with(), ranks)
        learner = assembly.make_learner(config_with(), loaded, ranks)
        assert all(hasattr(p, "full_tensor") for p in learner.policy.model.parameters())
        assert ranks.compute_dtype is torch.bfloat16
    finally:
        disconnect()


def test_weights_of_bfloat16_are_sharded_as_float32():
    try:
        ranks = sharded_alone()
        config = config_with(use_kl_loss="true")
        loaded = assembly.load_policy_model(config, dtype="bfloat16")
        policy = assembly.make_learner(config, loaded, ranks).policy
        for model in (policy.model, policy.reference.frozen_copy.model):
            assert {p.dtype for p in model.parameters()} == {torch.float32}
    finally:
        disconnect()


@dataclass
class Asked:
    """What the model was loaded as."""

    options: dict = field(default_factory=dict)

    def load_model(self, path, **options):
        self.options = options


def test_a_model_that_is_to_be_sharded_is_loaded_in_cpu_memory_as_the_gpu_would_have_it(
    monkeypatch,
):
    asked = Asked()
    first, second = (SimpleNamespace(compute_dtype=torch.bfloat16, rank=rank) for rank in (0, 1))
    monkeypatch.setattr("ajet.core.model.load.load_model", asked.load_model)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for ranks, dtype, found in [
        (ONE_RANK, "auto", ("auto", "bfloat16", True)),
        (None, "auto", ("auto", "bfloat16", True)),
        (first, "auto", ("cpu", "bfloat16", True)),
        (first, "float32", ("cpu", "float32", True)),
        (second, "auto", ("cpu", "bfloat16", False)),  # it gets the weights from the first
    ]:
        config = load_config("tutorial/example_math_agent/demo.yaml", [f"ajet.model.dtype={dtype}"])
        assembly.load_learning_model(config, ranks)
        names = ("device", "dtype", "with_weights")
        assert tuple(asked.options[name] for name in names) == found


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_a_cluster_backbones_own_budget_of_tokens_goes_before_the_common_one(backbone):
    overrides = [f"{backbone}.trainer.max_token_len_per_gpu=77"]
    overrides += ["ajet.trainer_common.max_tokens_per_micro_batch=99"]
    for name, expected in ((backbone, 77), ("debug", 99)):
        config = load_config("tutorial/example_math_agent/demo.yaml", overrides, backbone=name)
        assert UpdateSettings.from_config(config).max_tokens_per_micro_batch == expected
        assert CriticSettings.from_config(config).max_tokens_per_micro_batch == expected
