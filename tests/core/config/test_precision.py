"""One decision on the number format: trainer, engines and plan read it, and a contradiction of the
two keys is refused."""

import pytest

from ajet.cluster.memory_estimate import engine_memory_inputs, trainer_memory_inputs
from ajet.core.config import load_config
from ajet.core.config.precision import describe_precision, dtype_on, state_dtype
from ajet.core.errors import ConfigError
from ajet.core.update.settings import ShardingSettings
from ajet.servers.settings import ServerSettings

PARAM = "ajet.trainer_common.fsdp_config.param_dtype"
SERVER = {"model_path": "m", "port": 1, "python": "p"}


def config_of(tmp_path, *overrides, backbone="verl"):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")
    return load_config(path, overrides, backbone=backbone)


@pytest.mark.parametrize(
    ("named", "computed", "on_cpu", "on_gpu"),
    [
        ("auto", "auto", "float32", "bfloat16"),
        ("auto", "bfloat16", "bfloat16", "bfloat16"),
        ("auto", "float32", "float32", "float32"),
        ("float32", "auto", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16", "bfloat16"),
        ("float64", "auto", "float64", "float64"),
    ],
)
def test_trainer_server_and_plan_compute_in_the_same(
    tmp_path, monkeypatch, named, computed, on_cpu, on_gpu
):
    size = {"float64": 8, "float32": 4, "bfloat16": 2}[on_gpu]
    config = config_of(tmp_path, f"ajet.model.dtype={named}", f"{PARAM}={computed}")
    for has_gpu, device, expected in [(False, "cpu", on_cpu), (True, "cuda", on_gpu)]:
        monkeypatch.setattr("torch.cuda.is_available", lambda has_gpu=has_gpu: has_gpu)
        assert dtype_on(config, gpu=has_gpu) == expected
        assert ShardingSettings.from_config(config).param_dtype == expected
        assert ServerSettings.from_config(config, device=device, **SERVER).dtype == expected
    assert trainer_memory_inputs(config, ranks=1).compute_bytes == size
    assert engine_memory_inputs(config).value_bytes == size


@pytest.mark.parametrize("backbone", ["verl", "trinity"])
def test_two_formats_are_refused_in_one_line_that_names_both_keys(tmp_path, backbone):
    asked = ("ajet.model.dtype=float32", f"{PARAM}=bfloat16")
    with pytest.raises(ConfigError) as caught:
        config_of(tmp_path, *asked, backbone=backbone)
    assert str(caught.value).endswith(
        f"{PARAM} is refused: the trainer would compute in bfloat16 and the engines in "
        "ajet.model.dtype=float32: leave it at auto, or give both the same"
    )


def test_backbone_debug_reads_the_models_key_alone(tmp_path):
    asked = ("ajet.model.dtype=float32", f"{PARAM}=bfloat16")
    config = config_of(tmp_path, *asked, backbone="debug")
    assert dtype_on(config, gpu=True) == "float32"


def test_the_optimizer_is_in_float32_or_wider():
    assert [state_dtype(each) for each in ("bfloat16", "float32", "float64")] == [
        "float32",
        "float32",
        "float64",
    ]


def test_the_line_says_what_the_decision_follows_from(tmp_path):
    assert describe_precision(config_of(tmp_path), gpu=True) == (
        "precision: trainer and engines compute in bfloat16, the optimizer in float32 "
        "(ajet.model.dtype is auto, on a GPU)"
    )
    line = describe_precision(config_of(tmp_path, f"{PARAM}=float32"), gpu=True)
    assert line.endswith(f"compute in float32, the optimizer in float32 ({PARAM} is float32)")
