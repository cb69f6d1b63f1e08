"""What another package registers by entry point is found by its name, as ajet's own is."""

import ast
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ajet
from ajet.core.advantage import find_estimator
from ajet.core.config import AjetConfig
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import ConfigError
from ajet.core.judge import make_judge
from ajet.core.losses import find_loss
from ajet.core.task.reader import make_reader
from ajet.core.user_code import plugins as module
from ajet.core.user_code.plugins import load_plugin, plugins
from ajet.core.workflow.registry import registered_workflow
from ajet.suites.registry import find_suite

CODE = """
import typer
from ajet import BaseJudge, BaseTaskReader, Environment, Task, Workflow
from ajet.core.advantage.grpo import GRPO as MINE
from ajet.core.losses.ppo import PPO as LOSS
from ajet.suites.suite import Suite
from ajet.suites.registry import SUITES
import dataclasses
suite = dataclasses.replace(SUITES["bfcl_simple"], name="other")
class Judge(BaseJudge):
    def compute_reward(self, task, output): return 1.0
class Reader(BaseTaskReader):
    def get_training_tasks(self): return [Task("t", "q")]
    def get_validation_tasks(self): return []
class Board(Environment):
    def reset(self, seed=None, options=None): return "start", {}
    def step(self, action): return "end", 1.0, True, False, {}
class Agent(Workflow): pass
def hello(name: str) -> None: typer.echo(f"hello {name}")
"""
ENTRY_POINTS = """
[ajet.judges]
other_judge = other_package:Judge
[ajet.readers]
other_reader = other_package:Reader
[ajet.environments]
other_board = other_package:Board
[ajet.workflows]
other_agent = other_package:Agent
[ajet.estimators]
other_estimator = other_package:MINE
[ajet.losses]
other_loss = other_package:LOSS
[ajet.suites]
other_suite = other_package:suite
[ajet.commands]
hello = other_package:hello
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    def write(entry_points: str, name: str = "other-package") -> None:
        (tmp_path / "other_package.py").write_text(CODE)
        info = tmp_path / f"{name}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(entry_points)
        module._installed.cache_clear()
        module.plugins.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    monkeypatch.undo()
    module._installed.cache_clear()
    module.plugins.cache_clear()
    sys.modules.pop("other_package", None)


def config_of(**sections):
    return AjetConfig.model_validate({"ajet": {"model": {"path": "m"}, **sections}})


def test_each_kind_of_plugin_is_found_by_its_name(install):
    install(ENTRY_POINTS)
    judge = make_judge(config_of(task_judge={"judge_protocol": "other_judge"}))
    assert type(judge).__name__ == "Judge"
    [task] = make_reader(config_of(task_reader={"type": "other_reader"})).get_training_tasks()
    assert task.main_query == "q"
    assert environment_maker("other_board", {}, [], "env")().reset(0) == ("start", {})
    assert registered_workflow("other_agent").__name__ == "Agent"
    assert find_estimator("other_estimator") is find_estimator("grpo")
    assert find_loss("other_loss") is find_loss("ppo")
    assert find_suite("other_suite").name == "other"


def test_a_command_of_another_package_is_listed_and_run(install):
    install(ENTRY_POINTS)
    from ajet.cli.launcher import app

    assert "\n  hello " in CliRunner().invoke(app, ["--help"]).stdout
    assert CliRunner().invoke(app, ["hello", "you"]).stdout == "hello you\n"


def test_a_name_that_two_packages_register_is_refused(install):
    install("[ajet.judges]\nmath = other_package:Judge\n")
    with pytest.raises(ConfigError, match=r"'math' is registered by ajet .* and by other-package"):
        plugins("ajet.judges")


def test_a_plugin_with_one_of_ajets_names_is_refused_in_one_line(install):
    install(
        "[ajet.losses]\nppo = other_package:LOSS\n[ajet.commands]\nstop = other_package:hello\n"
    )
    from ajet.cli.launcher import app

    with pytest.raises(ConfigError, match=r"'ppo' of other-package .* has the name of one of ajet"):
        find_loss("ppo")
    for arguments in (["--help"], ["stop", "you"]):
        result = CliRunner().invoke(app, arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert result.stderr.startswith("error: ajet.commands: 'stop' of other-package")


def test_a_plugin_that_cannot_be_imported_says_whose_it_is(install):
    install("[ajet.judges]\nbroken = missing_module:Judge\n")
    with pytest.raises(ConfigError, match=r"'broken' of other-package .* cannot be imported"):
        load_plugin("ajet.judges", "broken")


@pytest.mark.parametrize(
    ("find", "group", "expected"),
    [
        (find_estimator, "ajet.estimators", "Estimator"),
        (find_loss, "ajet.losses", "PolicyLoss"),
        (find_suite, "ajet.suites", "Suite"),
    ],
)
def test_a_plugin_of_another_type_is_one_line(install, find, group, expected):
    install(f"[{group}]\nwrong = other_package:Judge\n")
    with pytest.raises(ConfigError, match=f"'wrong' of .* is a type, where a {expected} is exp"):
        find("wrong")


def test_a_command_that_cannot_be_imported_leaves_the_help_of_the_others(install):
    install("[ajet.commands]\nbroken = missing_module:hello\n")
    from ajet.cli.launcher import app

    text = CliRunner().invoke(app, ["--help"], terminal_width=200).stdout
    assert (
        "\n  train " in text and "'broken' of other-package (missing_module:hello) cannot" in text
    )
    result = CliRunner().invoke(app, ["broken"])
    assert result.exit_code == 1 and result.stderr.startswith("error: ajet.commands: 'broken' of")


def test_core_names_no_package_above_it_in_a_string():
    root = Path(ajet.__file__).parent
    above = {path.stem for path in root.iterdir() if path.name not in ("core", "__init__.py")}
    sections = set(AjetConfig.model_fields["ajet"].annotation.model_fields)
    groups = {group for group in entry_points().groups if group.startswith("ajet.")}
    named = [
        f"{path.relative_to(root)}:{node.lineno}: {node.value}"
        for path in (root / "core").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("ajet.") and " " not in node.value and node.value not in groups
        if node.value.replace("->", ".").split(".")[1] in above - sections
    ]
    assert named == []
