"""Each kind of project is checked without a warning, its test passes, and it trains."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from ajet.cli.init import KindName
from ajet.cli.launcher import app
from ajet.core.config.json_schema import config_schema
from ajet.core.text.install import install_command
from ajet.projects.project import KINDS
from tests.warm_start import warm_run

EDITOR = {".gitignore"} | {
    f".vscode/{name}.json" for name in ("ajet.schema", "extensions", "launch", "settings")
}
KIND_NAMES = get_args(KindName)
SHARED = EDITOR | {"README.md", "train.yaml", "test_agent.py"}
TASKS = {"judge.py", "tasks.jsonl", "tasks_held_out.jsonl"}
OWN = {
    "langgraph": TASKS | {"agent.py"},
    "openai": TASKS | {"agent.py"},
    "agentscope": TASKS | {"agent.py"},
    "chat": TASKS | {"agent.py"},
    "environment": {"game.py"},
    "http": TASKS | {"agent.py", "workflow.py"},
    "tools": TASKS | {"tools.py", "tools.yaml"},
}
ONE_STEP = (
    "ajet.trainer_common.total_training_steps=1",
    "ajet.trainer_common.val_before_train=false",
    "ajet.data.train_batch_size=2",
    "ajet.rollout.num_repeat=2",
    "ajet.data.val_max_tasks=2",
)


def run(*arguments: object, command: str = "init"):
    return CliRunner().invoke(app, [command, *map(str, arguments)])


def paths_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=KIND_NAMES)
def project(request, tmp_path):
    folder = tmp_path / "mine"
    assert run(folder, "--kind", request.param).exit_code == 0
    assert paths_of(folder) == SHARED | OWN[request.param]
    return folder


def test_the_command_offers_every_kind():
    assert tuple(KINDS) == KIND_NAMES


def test_a_new_project_is_checked_tested_and_trained_for_a_step(project):
    checked = run("--conf", project / "train.yaml", command="check")
    assert checked.exit_code == 0, checked.output
    assert "warning" not in checked.output and "notice" not in checked.output
    test = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_agent.py"]
    ended = warm_run(test, cwd=project, env=os.environ)
    assert ended.returncode == 0, ended.stdout
    runs = project / "launcher_record"
    trained = run(
        *("--conf", project / "train.yaml", "--backbone", "debug", "--exp-dir", runs),
        *ONE_STEP,
        command="train",
    )
    assert trained.exit_code == 0, trained.output
    summary = json.loads((runs / "mine" / "summary.json").read_text())
    assert summary["steps"] == 1


def test_a_readme_names_what_is_there_and_three_lines_are_marked(project):
    readme = (project / "README.md").read_text()
    named = {line.split("`")[1] for line in readme.splitlines() if line.startswith("| `")}
    files = paths_of(project) - EDITOR - {"README.md"}
    assert named == files | {".vscode"}
    marked = [
        line.partition("YOURS (")[2][0]
        for name in files
        if not name.endswith(".jsonl")
        for line in (project / name).read_text().splitlines()
        if "YOURS (" in line
    ]
    assert sorted(marked) == ["1", "2", "3"]


def test_the_tasks_of_training_and_those_held_out_share_none(tmp_path):
    assert run(tmp_path, "--kind", "chat").exit_code == 0
    trained, held_out = (
        {line for line in (tmp_path / name).read_text().splitlines()}
        for name in ("tasks.jsonl", "tasks_held_out.jsonl")
    )
    assert json.loads(min(held_out)).keys() == {"question", "answer"}
    assert not trained & held_out


def test_an_editor_finds_the_schema_of_the_yaml(tmp_path):
    assert run(tmp_path, "--kind", "chat").exit_code == 0
    settings = json.loads((tmp_path / ".vscode/settings.json").read_text())
    (schema,) = settings["yaml.schemas"]
    assert json.loads((tmp_path / schema).read_text()) == config_schema()
    launch = json.loads((tmp_path / ".vscode/launch.json").read_text())
    args = [each["args"] for each in launch["configurations"]]
    assert ["debug", "--conf", "train.yaml", "--tasks", "2", "--parallel", "1"] in args
    assert ["--conf", "train.yaml", "--backbone", "debug"] in args


def test_the_game_is_sound_and_a_random_agent_finds_some_numbers(tmp_path):
    assert run(tmp_path, "--kind", "environment").exit_code == 0
    checked = run("--conf", tmp_path / "train.yaml", command="env-check")
    assert checked.exit_code == 0, checked.output
    assert "sound: the same seed gives the same episode" in checked.stdout
    assert "no group of the random agent carries a signal" not in checked.stdout


def test_links_that_lead_in_a_circle_are_one_line(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for folder in (tmp_path / "loop", tmp_path / "loop" / "new"):
        result = run(folder, "--kind", "chat")
        assert result.exit_code == 1
        assert f"error: {folder}: Too many levels of symbolic links: give" in result.stderr


def test_a_name_that_is_no_text_is_printed_all_the_same(tmp_path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")  # made by a program that writes Latin-1
    assert f"{tmp_path}/caf\ufffd: .gitignore" in run(folder, "--kind", "chat").stdout
    assert "train.yaml" in paths_of(folder)


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "agent.py").write_text("mine")
    result = run(tmp_path, "--kind", "chat")
    assert result.exit_code == 1
    assert "agent.py is there already, and nothing was written" in result.stderr
    assert paths_of(tmp_path) == {"agent.py"}
    assert (tmp_path / "agent.py").read_text() == "mine"


def test_the_next_commands_are_said_with_the_folder_to_go_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("new", "--kind", "chat").stdout
    assert "next:\n  cd new\n  ajet check --conf train.yaml\n  ajet --conf train.yaml" in said
    said = run("my 'new' agent", "--kind", "chat").stdout
    assert """next:\n  cd 'my '"'"'new'"'"' agent'\n  ajet check""" in said
    monkeypatch.chdir(tmp_path / "new")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert "next:\n  ajet check" in run("--kind", "chat").stdout


def test_the_packages_that_a_kind_lacks_are_said_in_one_command(tmp_path, monkeypatch):
    for module in ("torch", "langchain"):
        monkeypatch.setitem(sys.modules, module, None)  # as where it is not installed
    command = install_command("train", "langgraph")
    said = run(tmp_path / "graph", "--kind", "langgraph").stdout
    assert f"{command}      # torch and langchain are not installed\n" in said
    readme = (tmp_path / "graph" / "README.md").read_text()
    assert f"```bash\n{command}\n" in readme


def test_without_a_terminal_the_missing_kind_is_one_line(tmp_path):
    result = run(tmp_path)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: --kind is missing: give one of langgraph, openai")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["a b", "true", "1", "ü", "-x-", "'"])
def test_any_folders_name_becomes_a_runs_name(name, tmp_path):
    folder = tmp_path / name
    assert run(f"{tmp_path}/{name}", "--kind", "environment").exit_code == 0
    checked = run("--conf", folder / "train.yaml", command="check")
    assert checked.exit_code == 0, checked.output


def test_on_a_terminal_the_kind_is_asked_for(tmp_path):
    terminal, of_command = pty.openpty()
    command = [sys.executable, "-m", "ajet.cli.launcher", "init", str(tmp_path)]
    os.write(terminal, b"environment\n")
    ended = subprocess.run(command, stdin=of_command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "kind (langgraph, openai, agentscope, chat, environment, http, tools)" in ended.stdout
    assert (tmp_path / "game.py").exists()
