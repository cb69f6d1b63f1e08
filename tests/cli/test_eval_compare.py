"""`ajet eval --compare A B`: files of earlier evaluations, run folders and models, in pairs."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from tests.cli.test_eval_command import FLOW, YAML
from tests.suites.bfcl_package import write_bfcl_data
from tests.suites.conftest import bfcl_package  # noqa: F401 - a fixture

SHORT = ("ajet.rollout.max_response_length_in_one_turn=4", "ajet.trainer_common.torch_threads=1")


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("flow.py").write_text(FLOW)
    Path("run.yaml").write_text(YAML)
    for name in ("train", "test"):
        rows = [{"query": f"{name} {n}", "answer": str(n)} for n in range(6)]
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def run(*args):
    return CliRunner().invoke(app, args, terminal_width=200)


def compared(*args):
    result = run("eval", "--compare", *args, "--out", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_two_earlier_results_are_compared_without_a_config_and_written_in_three_forms(project):
    for name, temperature in (("a", 1.0), ("b", 0.0)):
        drawn = f"ajet.rollout.val_kwargs.temperature={temperature}"
        first = run("eval", "--conf", "run.yaml", "-k", "2", "--out", f"{name}.json", drawn, *SHORT)
        assert first.exit_code == 0, first.output
    tasks = json.loads(Path("a.json").read_text())["tasks"].values()
    assert [task["query"] for task in tasks] == [f"test {n}" for n in range(6)]
    assert all(len(task["answers"]) == 2 and task["answers"][0] for task in tasks)
    result = run("eval", "--compare", "a.json", "b.json", "--out", "both.html")
    assert result.exit_code == 0, result.output
    assert "written: both.json and both.md and both.html" in result.stdout
    assert "replies were sampled differently: A temperature 1.0, " in result.stdout
    [part] = json.loads(Path("both.json").read_text())["parts"]
    evaluations = [json.loads(Path(f"{name}.json").read_text())["tasks"] for name in "ab"]
    before, after = ({t: sum(row["success"]) for t, row in e.items()} for e in evaluations)
    rose = sum(after[name] > before[name] for name in before)
    assert (part["name"], part["num_compared"], part["num_rose"]) == ("validation", 6, rose)
    assert Path("both.html").read_text().startswith("<!doctype html>")


def test_a_run_and_its_base_model_are_measured_on_the_same_tasks(project):
    assert run("--conf", "run.yaml", *SHORT).exit_code == 0
    sides = ("embedded:math", "launcher_record/run")
    plain = compared(*sides, "--conf", "run.yaml", "--num-tasks", "4", *SHORT)
    assert plain["a"] == "model embedded:math"
    assert plain["b"].endswith("launcher_record/run/checkpoints/step_000002")
    [part] = plain["parts"]
    assert part["num_compared"] == 4 and set(part["pass_at_k"]) == {"1", "2"}
    same = compared(sides[0], sides[0], "--conf", "run.yaml", "--num-tasks", "2", *SHORT)
    assert same["parts"][0]["num_same"] == 2  # the same seeds


def test_models_are_compared_on_benchmarks(project, bfcl_package):  # noqa: F811
    write_bfcl_data(project / "data", num=3)
    suite = ("--suite", "bfcl_simple", "--data", "data", *SHORT)
    assert run("eval", *suite, "--model", "embedded:math", "--out", "a.json").exit_code == 0
    plain = compared("a.json", "embedded:math", *suite)
    [part] = plain["parts"]
    assert (part["name"], part["num_compared"], part["num_same"]) == ("bfcl_simple", 3, 3)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (("a.json", "embedded:math"), "'embedded:math' is not the JSON file"),
        (("a.json", "b.json", "--model", "m"), "--compare A B names both models"),
        (("a.json", "b.json", "--against", "m"), "--compare A B names both models"),
    ],
)
def test_wrong_usage_is_said(project, args, problem):
    result = run("eval", "--compare", *args)
    assert result.exit_code == 2 and problem in " ".join(result.stderr.split())


def test_a_file_that_is_not_there_is_said_before_a_model_is_measured(project):
    result = run("eval", "--compare", "embedded:math", "none.json", "--conf", "run.yaml")
    assert result.exit_code == 1
    assert result.stderr == "error: --compare none.json: No such file or directory [AJ-DAT-014]\n"
