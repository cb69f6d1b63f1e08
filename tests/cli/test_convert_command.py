"""`ajet convert`: the YAML, what is said beside it, and its exit codes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.config import load_config

SOURCES = Path(__file__).parents[1] / "data" / "convert"
LAKE = SOURCES / "roll" / "lake" / "lake_grpo.yaml"
MATH = "ajet: {model: {path: embedded:math}, rollout: {num_repeat: 8}}"


def run(*arguments: object):
    return CliRunner().invoke(app, ["convert", *map(str, arguments)])


def test_the_written_yaml_loads_and_the_rest_is_said(tmp_path):
    out = tmp_path / "new" / "lake.yaml"
    result = run("--from", "roll", LAKE, "--out", out, "seed=9")
    assert result.exit_code == 0
    assert load_config(out).ajet.seed == 9
    assert "left out: my_own_switch = 3: not a key of ROLL that ajet knows" in result.stdout
    assert "ajet check --conf" in result.stdout


def test_without_out_the_yaml_alone_is_on_stdout(tmp_path):
    result = run("--from", "roll", LAKE)
    piped = tmp_path / "piped.yaml"
    piped.write_text(result.stdout, encoding="utf-8")
    assert load_config(piped).ajet.experiment_name == "lake_grpo"
    assert "my_own_switch = 3" in result.stderr


def test_strict_fails_for_what_changes_the_algorithm(tmp_path):
    assert run("--from", "roll", LAKE, "--strict").exit_code == 1
    plain = tmp_path / "plain.yaml"
    plain.write_text(MATH)
    assert run("--from", "agentjet", plain, "--strict").exit_code == 0
    plain.write_text(MATH.replace("num_repeat", "num_repaet"))
    assert run("--from", "agentjet", plain, "--strict").exit_code == 1


def test_convert_overwrites_a_file_only_with_its_option(tmp_path):
    out = tmp_path / "there.yaml"
    out.write_text("mine")
    result = run("--from", "roll", LAKE, "--out", out)
    assert (result.exit_code, out.read_text()) == (1, "mine")
    assert "add --overwrite" in result.stderr
    assert run("--from", "roll", LAKE, "--out", out, "--overwrite").exit_code == 0
    source = out.read_text()
    assert run("--from", "agentjet", out, "--out", out, "--overwrite").exit_code == 1
    assert out.read_text() == source


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--from", "roll", "nowhere.yaml"], "nowhere.yaml: no such config file"),
        (["--from", "verl", "nowhere.sh"], "nowhere.sh: no such file"),
        (["--from", "roll", LAKE, "--out", "x.txt"], "a config ends in .yaml"),
    ],
)
def test_a_mistake_is_one_line(arguments, problem, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_another_system_is_wrong_usage():
    assert run("--from", "trl", LAKE).exit_code == 2


ROW = '{"prompt": "1+1?", "reward_model": {"style": "rule", "ground_truth": "2"}}\n'
SCRIPT = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1 "
    "data.train_files=train.jsonl data.val_files=train.jsonl "
    "actor_rollout_ref.model.path=embedded:math actor_rollout_ref.rollout.n=4"
)


def test_a_converted_script_passes_the_check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text(ROW)
    Path("run.sh").write_text(SCRIPT)
    assert run("--from", "verl", "run.sh", "--out", "mine.yaml").exit_code == 0
    checked = CliRunner().invoke(app, ["check", "--conf", "mine.yaml"])
    assert checked.exit_code == 0, checked.stderr
    assert "ok: backbone debug" in checked.stdout
