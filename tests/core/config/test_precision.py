"""One decision on the number format: trainer, engines and plan read it, and a contradiction of the
two keys is refused."""

import pytest

from ajet.cli.findings import run_findings
from ajet.core.config import load_config
from ajet.core.config.precision import describe_precision, dtype_on, state_dtype
from ajet.core.errors import ConfigError
from ajet.core.process.processor import has_bfloat16_instructions
from ajet.core.ranks.settings import ShardingSettings
from ajet.plan.memory import EngineMemoryInputs, TrainerMemoryInputs
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
    assert TrainerMemoryInputs.from_config(config, ranks=1).compute_bytes == size
    assert EngineMemoryInputs.from_config(config).value_bytes == size


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


@pytest.mark.parametrize(
    ("flags", "there"),
    [
        ("fpu sse2 avx2 fma", False),
        ("fpu avx2 avx512f avx512vl avx512bw avx512dq", False),  # float32's instructions alone
        ("fpu avx512f avx512_bf16", True),
        ("fpu amx_tile amx_bf16 amx_int8", True),
    ],
)
def test_the_processors_flags_tell_whether_it_multiplies_bfloat16(tmp_path, flags, there):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nmodel name\t: P\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert has_bfloat16_instructions(cpuinfo) is there
    assert has_bfloat16_instructions(tmp_path / "none") is False


@pytest.mark.parametrize(("there", "on_cpu"), [(True, "bfloat16"), (False, "float32")])
def test_fastest_is_decided_where_the_config_is_read(tmp_path, monkeypatch, there, on_cpu):
    monkeypatch.setattr("ajet.core.config.model.has_bfloat16_instructions", lambda: there)
    config = config_of(tmp_path, "ajet.model.dtype=fastest", backbone="debug")
    assert (dtype_on(config, gpu=False), dtype_on(config, gpu=True)) == (on_cpu, "bfloat16")
    monkeypatch.setattr("ajet.core.config.model.has_bfloat16_instructions", lambda: not there)
    assert dtype_on(config, gpu=False) == on_cpu  # a process elsewhere does not decide again


def test_bfloat16_without_instructions_is_a_warning_that_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setattr("ajet.cli.findings.has_gpu", lambda config: False)
    monkeypatch.setattr("ajet.core.config.precision.has_bfloat16_instructions", lambda: False)
    named = config_of(tmp_path, "ajet.model.dtype=bfloat16", backbone="debug")
    (found,) = (each for each in run_findings(named, []) if "precision" in each.text)
    assert found.level == "warning"
    assert found.text.endswith("as long as in float32: set ajet.model.dtype=fastest")
    assert "instructions" not in describe_precision(named, gpu=True)
    monkeypatch.setattr("ajet.core.config.precision.has_bfloat16_instructions", lambda: True)
    (found,) = (each for each in run_findings(named, []) if "precision" in each.text)
    assert found.level == "ok"
