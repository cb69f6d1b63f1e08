"""What newcomers do wrong, and the one line that they see: mistakes.yaml lists it."""

import json
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import ajet
from ajet.cli.launcher import app
from ajet.core.errors.codes import Code
from ajet.core.workflow import registry

MISTAKES = yaml.safe_load(Path(__file__).with_name("mistakes.yaml").read_text("utf-8"))
PROJECT = {
    "solver.yaml": """\
ajet:
  model: {path: embedded:math}
  data: {train_batch_size: 2, max_prompt_length: 256, max_response_length: 64}
  rollout:
    user_workflow: solver.py->Solver
    num_repeat: 2
    max_response_length_in_one_turn: 8
  task_judge:
    judge_protocol: judge.py->Judge
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file: {training: {file_path: tasks.jsonl}}
  trainer_common: {total_training_steps: 1, torch_threads: 1}
""",
    "solver.py": """\
from ajet import Workflow, WorkflowOutput


class Solver(Workflow):
    async def execute(self, workflow_task, model_tuner):
        question = [{"role": "user", "content": workflow_task.task.main_query}]
        reply = await model_tuner.chat(question)
        return WorkflowOutput(metadata={"final_answer": reply["content"]})
""",
    "judge.py": """\
from ajet import BaseJudge


class Judge(BaseJudge):
    def compute_reward(self, workflow_task, workflow_output):
        return 1.0, True
""",
    "tasks.jsonl": "".join(
        json.dumps({"query": f"What is {i} + 1?", "answer": f"#### {i + 1}"}) + "\n"
        for i in range(4)
    ),
}
WRITES_OUTPUT = ("convert", "distill-data", "examples", "export", "init", "prepare-data", "schema")


def run(command: str):
    return CliRunner().invoke(app, command.split(" ")[1:], terminal_width=300)


@pytest.fixture
def apart(monkeypatch):
    """What a command leaves in this process is taken back: the import path, and the agents."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_WORKFLOWS", {})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def project(tmp_path, monkeypatch, apart) -> Path:
    """A project without a mistake, in the current folder."""
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """The folder `launcher_record` of the project's run of one step."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.setattr(registry, "_WORKFLOWS", {})
        for name, text in PROJECT.items():
            (folder / name).write_text(text)
        result = run("ajet --conf solver.yaml --backbone debug")
        assert result.exit_code == 0, result.output
    return folder / "launcher_record"


def make(mistake: dict[str, Any], project: Path) -> None:
    """Changes the project's files as the mistake has them."""
    for name, text in mistake.get("files", {}).items():
        (project / name).write_text(text)
    for name, changes in mistake.get("change", {}).items():
        for old, new in changes.items():
            text = (project / name).read_text()
            assert old in text
            (project / name).write_text(text.replace(old, new, 1))


def lines_of(result, project: Path) -> list[str]:
    text = (result.stderr + result.stdout).replace(str(project), "DIR")
    return text.replace(ajet.__path__[0], "AJET").splitlines()


def files_of(project: Path) -> dict[Path, bytes]:
    """Returns the files that a command may write: not what SQLite keeps beside a database that is
    read, nor compiled Python."""
    files = (path for path in project.rglob("*") if path.is_file())
    own = ("-shm", "-wal", ".pyc")
    return {path: path.read_bytes() for path in files if not path.name.endswith(own)}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["mistake"])
def test_a_mistake_is_one_line_that_says_what_where_and_what_to_do(mistake, project, request):
    make(mistake, project)
    if "after" in mistake:
        shutil.copytree(request.getfixturevalue("finished_run"), project / "launcher_record")
    before = files_of(project)
    result = run(mistake["command"])
    assert result.exit_code == mistake.get("exit", 1), result.output
    assert mistake["line"] in lines_of(result, project)
    assert "Traceback" not in result.output
    if result.exit_code == 2 or mistake["command"].split(" ")[1] in WRITES_OUTPUT:
        assert files_of(project) == before, "nothing is half written"


def test_there_are_more_than_forty_and_each_error_has_its_code():
    assert len({mistake["mistake"] for mistake in MISTAKES}) == len(MISTAKES) > 40
    errors = [mistake["line"] for mistake in MISTAKES if mistake.get("exit", 1)]
    codes = [re.fullmatch(r"[Ee]rror: .* \[(AJ-[A-Z]{3}-\d{3})\]", line) for line in errors]
    assert [line for line, code in zip(errors, codes, strict=True) if code is None] == []
    assert {code[1] for code in codes if code} <= {code.value for code in Code}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.rstrip("\n").encode(),
        lambda text: b"\n" + text.encode() + b"\n\n",
    ],
    ids=["byte-order mark", "Windows line ends", "no last newline", "empty lines"],
)
def test_files_of_any_editor_in_a_folder_of_any_name_are_read(change, tmp_path, monkeypatch, apart):
    folder = tmp_path / "my prüject"
    folder.mkdir()
    for name, text in PROJECT.items():
        (folder / name).write_bytes(change(text))
    (folder / "tasks.jsonl").rename(folder / "die übungen.jsonl")
    monkeypatch.chdir(folder)
    tasks = "ajet.task_reader.jsonl_dataset_file.training.file_path=die übungen.jsonl"
    result = CliRunner().invoke(app, ["check", "--conf", "solver.yaml", tasks])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tasks.jsonl", "tasks.jsonl:1: not UTF-8; save the file in UTF-8 [AJ-DAT-002]"),
        ("solver.yaml", "; save it in UTF-8 [AJ-CFG-002]"),
    ],
)
def test_a_file_of_another_encoding_is_one_line_that_says_utf_8(encoding, name, message, project):
    (project / name).write_bytes(f"# für\n{PROJECT[name]}".encode(encoding))
    result = run("ajet check --conf solver.yaml")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert result.stderr.strip().endswith(message)


@pytest.mark.parametrize("named", ["pipe", "link"])
def test_an_output_that_is_no_plain_file_is_written_to_and_not_replaced(
    named, project, finished_run
):
    pipe, link = project / "pipe", project / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    result = run(f"ajet inspect audit {finished_run / 'solver'} --out {project / named}")
    assert result.exit_code == 0, result.output
    assert json.loads(os.read(reader, 1 << 16))["sound"] is True
    os.close(reader)
    assert pipe.is_fifo() and link.is_symlink()


@pytest.mark.parametrize(
    "command",
    [
        "check --conf NAME.yaml",
        "check --conf solver.yaml --exp-dir NAME",
        "check --conf solver.yaml --project-dir NAME",
        "check --conf solver.yaml ajet.model.path=./NAME",
        "check --conf solver.yaml ajet.rollout.user_workflow=NAME.py->Solver",
        "check --conf solver.yaml ajet.task_reader.jsonl_dataset_file.training.file_path=NAME",
        "view NAME",
        "audit NAME",
        "convert NAME.sh --from verl",
        "init NAME --kind chat",
        "prepare-data arithmetic --out NAME",
    ],
)
def test_a_path_that_the_system_does_not_look_up_is_one_line(command, project):
    """A name is too long here; a folder that may not be searched raises the same class of error,
    which tests that run as root cannot make."""
    before = files_of(project)
    result = run(f"ajet {command.replace('NAME', 'n' * 300)}")
    assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
    assert "nnn" in result.stderr and ": File name too long: give another path" in result.stderr
    assert result.stderr.endswith("[AJ-USE-010]\n")
    assert files_of(project) == before


def test_a_port_in_use_is_one_line(project, finished_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(f"ajet view {finished_run / 'solver'} --port {port} --no-browser")
    assert result.exit_code == 1
    assert result.stderr == (
        f"error: the page cannot listen on 127.0.0.1:{port}: Address already in use; choose "
        "another --port, or 0 for any free one [AJ-NET-007]\n"
    )
