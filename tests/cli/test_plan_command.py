"""`ajet plan`, and the lines by which check and train refuse what does not fit."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.text.install import install_command
from tests.plan.published_configs import PUBLISHED

OFFLOAD = "ajet.trainer_common.fsdp_config.param_offload=true"
QWEN_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
}  # fmt: skip


@pytest.fixture
def conf(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(QWEN_7B))
    path = tmp_path / "run.yaml"
    path.write_text("ajet:\n  backbone: verl\n  model: {path: model}\n")
    return path


def run(command, conf, *args):
    return CliRunner().invoke(app, [command, "--conf", str(conf), *args])


def error_line(result):
    assert result.exit_code == 1, result.output
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr.strip()


def test_a_plan_shows_placement_memory_and_times(conf):
    result = run("plan", conf, "--gpus", "8")
    assert result.exit_code == 0, result.output
    assert "trainer 7, engine 7" in result.stdout
    assert "7.62 billion parameters, a100" in result.stdout
    assert "605,080 tokens" in result.stdout and "optimizer steps" not in result.stdout
    shown = " ".join(result.stdout.split())
    assert "MFU of the update" in shown and "weight sync" in shown and "products" in shown
    assert shown.endswith(  # rank 0 loads 7B and its reference; 12 bytes a parameter, three times
        "ok: by these estimates it fits the GPUs; a node needs 64 GiB of CPU memory and 14 "
        "in /dev/shm, and 255 GiB of disk, which was not compared (--host-memory)"
    )
    assert not Path("launcher_record").exists()


def test_a_plan_of_a_mixture_says_what_a_token_is_multiplied_with(conf, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PUBLISHED["Qwen3-30B-A3B"]))
    tensor_parallel = "ajet.rollout.tensor_model_parallel_size=2"
    args = ("--gpus", "8", "--gpu", "h100", "--model-config", str(config), OFFLOAD)
    result = run("plan", conf, *args, tensor_parallel)
    assert result.exit_code == 0, result.output
    assert "30.53 billion parameters, 3.35 of them for each token, h100" in result.stdout
    shown = " ".join(result.stdout.replace("│", " ").split())
    # 61.06 GB in two; 48 layers of 2 x 4 heads of 128 in bfloat16 are 98,304 bytes a token
    assert "engine weights 28.4 2 bytes, 1/2 engine KV cache 18.1 394,630 tokens" in shown
    # 2 FLOPs x 2,730,491,904 weights of products x 1,008,000 tokens x 5 passes
    assert "27,523 TFLOP in 5 passes" in shown
    config.write_text('{"model_type": "no_such_family"}')
    unknown = run("plan", conf, *args)
    assert "model type `no_such_family`" in error_line(unknown)


def test_a_plan_on_cpus_has_processes_and_no_gpu_memory(conf):
    result = run("plan", conf, "--gpus", "0", "ajet.trainer_common.n_trainer_ranks=2")
    assert result.exit_code == 0 and "trainer 0 to 1, engine 0" in result.stdout
    assert "GiB" not in result.stdout and result.stdout.rstrip().endswith("ok: it can be placed")


def test_a_plan_compares_the_memory_of_nodes_that_is_given(conf):
    fits = run("plan", conf, "--gpus", "8", "--host-memory", "512GB")
    assert fits.stdout.rstrip().endswith("ok: by these estimates it fits")
    lacking = run("plan", conf, "--gpus", "1", "--host-memory", "128GB", OFFLOAD)
    assert "node 0 has 128 GiB of CPU memory, and needs about" in error_line(lacking)
    assert "it fits" not in lacking.stdout


def test_a_plan_of_debug_on_a_gpu_is_accounted_and_measures_nothing(conf):
    args = ("--backbone", "debug", "--gpu", "4090")
    too_large = run("plan", conf, *args)
    assert "the run needs about" in error_line(too_large) and "GiB of 24" in error_line(too_large)
    result = run("plan", conf, *args, "ajet.trainer_common.lora.rank=16", "--gpu-memory", "40GB")
    assert result.exit_code == 0, result.output
    assert "adapters" in result.stdout and "measured" not in result.stdout
    assert result.stdout.rstrip().endswith("ok: by these estimates it fits")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpus", "1"], "error: does not fit: a trainer rank needs about"),
        (["--gpus", "8", "--gpu-memory", "24GB"], "most of it optimizer, 7); set ajet.trainer_com"),
        (["--gpus", "2", "ajet.rollout.tensor_model_parallel_size=4"], "size=4 does not divide"),
        (["--gpus", "1", "--backbone", "trinity"], "too few GPUs: 1 engine of 1 GPU"),
        (["--nodes", "1", "--gpus", "8", "ajet.trainer_common.nnodes=2"], "the cluster has 1 node"),
        (["--gpus", "8", "--gpu", "b1"], "--gpu b1: unknown; give the nearest of a10, l4"),
        (["--gpus", "8", "--gpu-memory", "big"], "--gpu-memory big: write 80GB"),
        (["--gpus", "8", "ajet.model.path=nowhere/x"], "model 'nowhere/x': no config.json"),
        (["--gpus", "8", "--model-config", "no.json"], "no.json: cannot be read as a model's"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_the_last_line_and_one(conf, monkeypatch, args, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert message in error_line(run("plan", conf, *args))


def test_a_plan_of_one_process_measures_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    conf = Path(__file__).parents[2] / "tutorial/example_math_agent/demo.yaml"
    sizes = ("--prompt-tokens", "20", "--reply-tokens", "8")
    small = ("ajet.data.train_batch_size=2", "ajet.rollout.max_env_worker=16")
    result = run("plan", conf, "--backbone", "debug", *sizes, *small)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.split())  # a title is wrapped to the width of its table
    assert "0.9 million parameters" in shown
    assert "16 at once, 20 + 8 tokens an episode" in shown
    assert "peak" in shown and "60 steps, without loading" in shown


def test_a_trial_gives_the_plan_the_episodes_of_the_runs_own_tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    conf = Path(__file__).parents[2] / "tutorial/example_math_agent/demo.yaml"
    small = ("ajet.data.train_batch_size=2", "ajet.rollout.max_env_worker=16")
    result = run("plan", conf, "--backbone", "debug", "--try", *small)
    assert result.exit_code == 0, result.output
    # The prompt is the demo's: its system prompt and tool take about 250 tokens of any question.
    [(prompt, reply)] = re.findall(r"16 at once, (\d+) \+ (\d+) tokens an episode", result.stdout)
    assert 250 < int(prompt) < 350 and 10 < int(reply) < 192
    assert "trying: the first tasks are played twice" in result.stdout
    assert list(tmp_path.iterdir()) == [], "a plan leaves nothing behind"


def test_a_trial_is_for_this_machines_processors(conf):
    line = error_line(run("plan", conf, "--gpus", "8", "--try"))
    assert "--try:" in line and "pass --backbone debug" in line


@pytest.mark.parametrize("device", ["cuda:99", "mps"])
def test_a_device_that_is_not_here_is_refused_in_the_line_of_check(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    conf = Path(__file__).parents[2] / "tutorial/example_math_agent/demo.yaml"
    options = ("--backbone", "debug", f"ajet.model.device={device}")
    line = error_line(run("plan", conf, *options))
    assert line.startswith(f"error: ajet.model.device: {device}") and line.endswith("[AJ-MOD-007]")
    assert line in run("check", conf, *options).stdout.splitlines()
    elsewhere = run("plan", conf, *options, "--gpu", "b200")
    assert elsewhere.exit_code == 0, elsewhere.output


def test_a_stage_that_does_not_fit_is_named(conf):
    stages = "  stages: {first: {trainer_common: {lora: {rank: 8}}}, second: {kind: supervised}}\n"
    conf.write_text(conf.read_text() + stages)
    args = ("--backbone", "debug", "--gpu", "4090", "--gpu-memory", "40GB")
    assert error_line(run("plan", conf, *args)).startswith("error: stage second: does not fit: ")


def test_gpu_memory_is_taken_in_the_usual_spellings():
    from ajet.cli.plan import described_gpu

    sizes = [described_gpu("a100", text).memory for text in ("80GB", "40", "24576 MiB")]
    assert sizes == [80, 40, 24]
    assert described_gpu("h200", None).memory == 141


def test_ray_that_is_not_installed_is_one_line(conf, monkeypatch):
    import ajet.cluster.session as session
    from ajet.core.errors import ConfigError

    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape(install_command("ray"))):
        session.require_ray()


def test_a_local_run_is_refused_before_ray_starts(conf, monkeypatch):
    from ajet.cli.options import serve_or_check
    from ajet.cluster.connection import SessionSettings
    from ajet.cluster.placement import Node
    from ajet.core.config import load_config
    from ajet.core.errors import ConfigError
    from ajet.plan import gpu_plan

    monkeypatch.setattr(gpu_plan, "local_node", lambda: Node("this machine", 2, 0))
    config = load_config(conf, ["ajet.trainer_common.n_gpus_per_node=8"])
    with pytest.raises(ConfigError, match="n_gpus_per_node=8: this machine has 0 GPUs"):
        serve_or_check(config, SessionSettings())
    assert serve_or_check(load_config(conf), SessionSettings(mode="start")) is False


def test_check_says_where_a_run_is_and_what_may_not_fit(conf):
    from ajet.cli.preflight import cluster_notices
    from ajet.core.config import load_config

    options = ["ajet.trainer_common.n_gpus_per_node=1"]
    placed, precision, problem = cluster_notices(load_config(conf, options))
    assert precision.startswith("precision: trainer and engines compute in bfloat16")
    assert placed.startswith("on GPUs: 1 trainer ranks, 1 engines,")
    assert problem.startswith("a100, 80 GiB: a trainer rank needs about")
    assert cluster_notices(load_config(conf, backbone="debug")) == []
