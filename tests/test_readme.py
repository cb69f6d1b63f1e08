"""The README is true: its example runs, its figures are those of the benchmarks' files."""

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.advantage import ESTIMATORS
from ajet.core.environment.registry import BUILT_IN, PREFIXED
from ajet.core.update.losses import LOSSES
from benchmarks.table import BEGIN, END, table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SMALL = [
    "ajet.model.path=embedded:math",
    "ajet.task_reader.huggingface_dat_repo.dataset_path=embedded:arithmetic",
    "ajet.rollout.max_response_length_in_one_turn=32",
]


def block(language, place=0):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[place]


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("solver.py").write_text(block("python"))
    Path("solver.yaml").write_text(block("yaml"))
    Path("lake.yaml").write_text(block("yaml", 1))


@pytest.mark.parametrize("command", [["check"], ["debug", "--tasks", "1"]])
def test_the_example_runs_as_it_is_printed(project, command):
    result = CliRunner().invoke(app, [*command, "--conf", "solver.yaml", *SMALL])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", [["check"], ["debug", "--tasks", "1"]])
def test_the_environment_is_played_as_it_is_printed(project, command):
    small = [
        "ajet.model.path=embedded:math",
        "ajet.environment.custom_envs.Lake.max_steps=1",
    ]
    result = CliRunner().invoke(app, [*command, "--conf", "lake.yaml", *small])
    assert result.exit_code == 0, result.output


def test_every_environment_estimator_and_loss_is_named():
    names = [*BUILT_IN, *PREFIXED, *ESTIMATORS, *LOSSES, "traj_env_agent", "step_env_agent"]
    assert [name for name in names if f"`{name}" not in README and name != "gymnasium"] == []


def test_the_example_fits_in_a_glance():
    lines = [line for line in block("python").splitlines() if line and "import" not in line]
    assert len(lines) <= 10


def test_every_command_and_option_that_is_shown_exists():
    shown = re.findall(r"^ajet (.*?)(?:  +#.*)?$", README, re.MULTILINE)
    assert len(shown) >= 5
    for line in shown:
        words = line.split()
        name = words[0] if not words[0].startswith("-") else "train"
        help_text = CliRunner().invoke(app, [name, "--help"]).output
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text, line


def test_the_figures_are_those_of_the_files():
    assert README.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


def test_every_file_that_is_linked_is_there():
    for page in [ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (page, target)
