"""`ajet skill`: where it is written, and that what it says is true."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from ajet import ModelTuner
from ajet.cli.launcher import app
from ajet.core.config import load_config
from ajet.core.config.section import leaves
from ajet.core.config.tree import AjetConfig
from ajet.core.errors.codes import Code
from ajet.core.record.warning_names import WARNINGS
from ajet.projects.project import SKILL
from ajet.testing import play

TEXT = SKILL.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
SHELL = [line for kind, block in BLOCKS if kind == "bash" for line in block.splitlines()]
SPANS = re.findall(
    r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", TEXT, flags=re.DOTALL | re.MULTILINE)
)
COMMANDS = [line for line in [*SHELL, *SPANS] if line.startswith("ajet ")]
PLACES = {
    "claude": (".claude/skills", ".claude/skills"),
    "codex": (".agents/skills", ".agents/skills"),
    "cursor": (".cursor/skills", ".cursor/skills"),
    "opencode": (".opencode/skills", ".config/opencode/skills"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def run(*args: str):
    return CliRunner().invoke(app, ["skill", *args], terminal_width=300)


def test_it_is_printed_as_it_is_in_the_package():
    assert run().stdout == TEXT


def test_its_head_is_that_of_agent_skills():
    _, head, body = TEXT.split("---\n", 2)
    fields = yaml.safe_load(head)
    assert fields.keys() == {"name", "description"} and fields["name"] == "ajet"
    assert 100 < len(fields["description"]) <= 1024
    assert body.count("\n") < 200


@pytest.mark.parametrize("tool", PLACES)
def test_it_is_written_where_the_tool_looks(tool, folder):
    in_project, at_home = PLACES[tool]
    for args, place in ([], in_project), (["--user"], f"home/{at_home}"):
        file = folder / place / "ajet" / "SKILL.md"
        result = run("--install", tool, *args)
        assert result.exit_code == 0 and result.stdout.startswith("written: ")
        assert file.read_text(encoding="utf-8") == TEXT


def test_a_changed_file_is_replaced_by_overwrite_alone(folder):
    file = folder / ".claude/skills/ajet/SKILL.md"
    run("--install", "claude")
    assert run("--install", "claude").stdout == "unchanged: .claude/skills/ajet/SKILL.md\n"
    file.write_text("mine")
    refused = run("--install", "claude")
    assert refused.exit_code == 1 and "add --overwrite" in refused.stderr
    assert file.read_text() == "mine"
    assert run("--install", "claude", "--overwrite").exit_code == 0
    assert file.read_text(encoding="utf-8") == TEXT


def test_user_without_a_tool_is_wrong_usage():
    assert run("--user").exit_code == 2


def test_it_names_the_commands_of_the_whole_way():
    named = {line.split()[1] for line in COMMANDS}
    assert {"init", "check", "debug", "train", "why", "eval", "export"} <= named


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one_that_ajet_takes(line):
    """The words are parsed, and nothing is run."""
    command, args = get_command(app), shlex.split(line)[1:]
    if args in ([], ["init"]):  # a span that only names it
        return
    while args and hasattr(command, "list_commands"):
        name, *args = args
        context = command.make_context("ajet", [name], resilient_parsing=True)
        command = command.get_command(context, name)
    command.make_context(name, args)


def test_codes_keys_warnings_and_methods_are_those_of_ajet():
    assert {*re.findall(r"AJ-\w{3}-\d{3}", TEXT)} <= {code.value for code in Code}
    keys = {leaf.path for leaf in leaves(AjetConfig().ajet, "ajet")}
    named = {*re.findall(r"\bajet\.[a-z_]+\.[a-z_.]+[a-z]", TEXT)}
    assert len(named) > 4 and named <= keys
    assert "no_signal" in WARNINGS
    methods = {*re.findall(r"model_tuner\.(\w+)", TEXT)}
    assert len(methods) == 5 and all(hasattr(ModelTuner, method) for method in methods)


def test_its_config_of_a_game_is_one(folder):
    [config] = [block for kind, block in BLOCKS if kind == "yaml"]
    (folder / "train.yaml").write_text(config)
    environment = load_config("train.yaml").ajet.environment.custom_envs["Towers"]
    assert (environment.env_type, environment.max_steps) == ("towers.py->Towers", 12)


def test_its_workflow_answers_and_its_row_is_a_task(folder):
    [code] = [block for kind, block in BLOCKS if kind == "python"]
    [row] = [json.loads(block) for kind, block in BLOCKS if kind == "json"]
    (folder / "workflow.py").write_text(code)
    (folder / "train.yaml").write_text(
        "ajet:\n  model: {path: embedded:math}\n"
        "  rollout: {user_workflow: workflow.py->AgentWorkflow}\n"
        "  task_judge: {judge_protocol: exact_match}\n"
        "  task_reader: {type: jsonl_dataset_file, jsonl_dataset_file: "
        "{training: {file_path: none.jsonl}}}\n"
    )
    episode = play("train.yaml", ["REFUND"], row)
    assert episode.is_success and "P-1002" in episode.turns[0].messages[0]["content"]
