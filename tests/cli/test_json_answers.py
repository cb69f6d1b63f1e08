"""`--json`: one document on stdout for every command that reports something, errors included."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.json_document import plain
from ajet.cli.launcher import COMMANDS, SUBCOMMANDS, WITHOUT_JSON, app
from ajet.core.errors.codes import Code

TOP = ["command", "ok", "exit_code", "errors", "notices"]
RUN = "toy/launcher_record/toy"
EPISODE = "000001-train-0000-00"
ONE_STEP = "ajet.trainer_common.total_training_steps=1"
MODEL_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
}  # fmt: skip
ANSWERS = {
    "init": ("init new --kind chat", "folder files next to_do"),
    "examples": ("examples", "examples"),
    "check": ("check --conf toy/toy.yaml", "runs"),
    "plan": ("plan --conf plan.yaml --gpus 8", "tables verdict"),
    "skill": ("skill", "text"),
    "inspect schema": ("inspect schema", "schema"),
    "train": (f"train --conf toy.yaml {ONE_STEP}", "already_complete run_folder checkpoint next"),
    "sweep": (f"sweep --conf toy.yaml {ONE_STEP} ajet.seed=1,2", "folder runs"),
    "debug": ("debug --conf toy.yaml --tasks 1", "episodes observations"),
    "eval": (
        f"eval --conf toy.yaml --checkpoint {RUN} --split training --num-tasks 1",
        "subject split success mean_at_k pass_at_k tasks",
    ),
    "inspect stop": (f"inspect stop {RUN} {EPISODE}", ""),  # nothing runs
    "why": (f"why {RUN}", "run num_steps trend causes headline"),
    "why CODE": ("why AJ-CFG-004", "code title meaning causes remedy"),
    "inspect audit": (f"inspect audit {RUN}", "sound episodes drift_rate"),
    "inspect replay": (f"inspect replay {RUN} {EPISODE}", "is_same summary differences"),
    "inspect fork": (f"inspect fork {RUN} {EPISODE} --turn 1 -n 1", "turn forks success reward"),
    "inspect score": (f"inspect score {RUN} {EPISODE}", "file mean_logprob_by_step"),
    "inspect trace": (f"inspect trace {RUN} --perfetto spans.json", "file num_episodes sent"),
    "inspect rebuild": (f"inspect rebuild {RUN}", ""),  # not a served run
    "inspect env": ("inspect env guess_number --episodes 2", "environment"),
    "inspect harbor": ("inspect harbor none", ""),  # no such folder
    "convert": ("convert lake.yaml --from roll", "system yaml left_out to_do"),
    "data prepare": (
        "data prepare arithmetic --num-train 2 --num-test 2 --out data",
        "files",
    ),
    "data distill": (f"data distill {RUN} --out rows.jsonl --min-reward 0", "file num_rows"),
    "export": (f"export {RUN} --out model", "folder checkpoint"),
    "servers": ("servers", "servers engine"),
    "watch": ("watch http://127.0.0.1:9", ""),  # nothing listens there
    "optimize-prompt": ("optimize-prompt --conf none.yaml", ""),
}
"""A line of each command with the smallest input, and the fields of its answer; without fields it
is one that ends with an error."""
IN_PROJECT = ("train", "sweep", "debug", "eval")


def run(line: str):
    return CliRunner().invoke(app, [*line.split(), "--json"], terminal_width=200)


@pytest.fixture
def place(folder, tmp_path, monkeypatch):
    """A copy of a folder with a run of one step, and a few inputs more."""
    shutil.copytree(folder / "toy", tmp_path / "toy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lake.yaml").write_text("exp_name: lake\npg_clip: 0.2\nnonsense: 3\n")
    (tmp_path / "7b").mkdir()
    (tmp_path / "7b/config.json").write_text(json.dumps(MODEL_7B))
    (tmp_path / "plan.yaml").write_text("ajet:\n  backbone: verl\n  model: {path: 7b}\n")
    return tmp_path


def test_the_lines_are_those_of_all_commands_that_report_something():
    every = {name for name in COMMANDS if name not in SUBCOMMANDS}
    every |= {f"{group} {name}" for group, names in SUBCOMMANDS.items() for name in names}
    silent = {name for name in every if name.split()[-1] in WITHOUT_JSON}
    assert {*ANSWERS} - {"why CODE"} == every - silent


@pytest.mark.parametrize("name", ANSWERS)
def test_stdout_is_one_document_with_the_commands_fields(name, place, monkeypatch):
    line, fields = ANSWERS[name]
    if name in IN_PROJECT:
        monkeypatch.chdir(place / "toy")
        line = line.replace(RUN, "launcher_record/toy")
    result = run(line)
    document = json.loads(result.stdout)
    assert [*document][:5] == TOP and document["command"] == name.removesuffix(" CODE")
    assert document["exit_code"] == result.exit_code
    assert document["ok"] == (result.exit_code == 0) == bool(fields), result.stderr
    assert document["ok"] or [error["code"] for error in document["errors"]]
    assert {*fields.split()} <= {*document}, result.stderr


@pytest.mark.parametrize(
    ("line", "exit_code", "code"),
    [
        ("chekc", 2, "AJ-USE-001"),
        ("inspect adit", 2, "AJ-USE-001"),
        ("check", 2, "AJ-USE-003"),
        ("view", 2, "AJ-USE-002"),
        ("check --conf x.yaml --ajet.seed=1", 2, "AJ-USE-005"),
        ("plan --conf x.yaml --gpus many", 2, "AJ-USE-004"),
        ("check --conf nowhere.yaml", 1, "AJ-CFG-001"),
        ("check --conf nowhere.yaml --verbose", 1, "AJ-CFG-001"),
        ("init", 1, "AJ-USE-003"),
    ],
)
def test_an_error_is_json_too_with_its_code_and_its_remedy(line, exit_code, code, tmp_path):
    result = run(line)
    document = json.loads(result.stdout)
    [error] = document["errors"]
    assert (result.exit_code, document["exit_code"], error["code"]) == (exit_code, exit_code, code)
    assert error["remedy"] == next(each.remedy for each in Code if each.value == code)
    assert error["message"] and f"[{code}]" not in error["message"]


def test_several_mistakes_of_a_config_are_several_errors_with_their_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("ajet:\n  sed: 1\n  rollout:\n    num_repeat: many\n")
    errors = json.loads(run("check --conf x.yaml").stdout)["errors"]
    assert [(error["code"], error["where"]) for error in errors] == [
        ("AJ-CFG-005", "x.yaml:4: ajet.rollout.num_repeat"),
        ("AJ-CFG-004", "x.yaml:2: ajet.sed"),
    ]


def test_an_error_among_the_findings_is_an_error_of_the_document(place):
    Path("toy/mute.py").write_text(
        "from ajet import Workflow, WorkflowOutput\n"
        "class Mute(Workflow):\n"
        "    async def execute(self, workflow_task, model_tuner):\n"
        "        return WorkflowOutput()\n"
    )
    result = run("check --conf toy/toy.yaml ajet.rollout.user_workflow=mute.py->Mute")
    document = json.loads(result.stdout)
    [checked] = document["runs"]
    levels = [finding["level"] for finding in checked["findings"]]
    assert [error["code"] for error in document["errors"]] == ["AJ-OWN-016"]
    assert (result.exit_code, levels.count("error"), checked["start"]) == (1, 1, None)


def test_what_the_users_code_and_its_programs_print_is_not_on_stdout(tmp_path):
    (tmp_path / "loud.py").write_text(
        "import subprocess, sys\n"
        "from ajet import Workflow\n"
        "print('from python')\n"
        "subprocess.run([sys.executable, '-c', 'print(\"from a program\")'])\n"
        "class Flow(Workflow): pass\n"
    )
    (tmp_path / "x.yaml").write_text(
        "ajet:\n  model: {path: embedded:math}\n  rollout: {user_workflow: loud.py->Flow}\n"
        "  task_reader: {type: random_dummy}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "ajet.cli.launcher", "check", "--conf", "x.yaml", "--json"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["errors"][0]["code"] == "AJ-OWN-005", done.stderr
    assert "from python" in done.stderr and "from a program" in done.stderr
    assert done.returncode == 1


def test_an_exception_that_nobody_expected_leaves_a_document(monkeypatch):
    def fails() -> None:
        raise RuntimeError("a wheel is missing")

    monkeypatch.setattr("ajet.cli.examples.known_names", fails)
    result = run("examples")
    [error] = json.loads(result.stdout)["errors"]
    assert error["code"] is None and error["message"].startswith("RuntimeError: a wheel is missing")
    assert isinstance(result.exception, RuntimeError)


def test_numbers_that_json_lacks_are_null_and_paths_are_text():
    assert plain({1: float("nan"), "p": Path("a"), "codes": (Code.DEVICE, 2.5, None, True)}) == {
        "1": None,
        "p": "a",
        "codes": [Code.DEVICE.value, 2.5, None, True],
    }


def test_ctrl_c_leaves_a_document_with_130(monkeypatch):
    def waits() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ajet.cli.examples.known_names", waits)
    result = run("examples")
    assert (result.exit_code, json.loads(result.stdout)["exit_code"]) == (130, 130)


def test_at_a_terminal_nothing_is_asked_with_json(tmp_path):
    terminal, stdin = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "ajet.cli.launcher", "init", "--json"],
        stdin=stdin,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    for descriptor in (terminal, stdin):
        os.close(descriptor)
    assert json.loads(done.stdout)["errors"][0]["code"] == "AJ-USE-003", done.stderr
