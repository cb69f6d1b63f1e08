"""The README and the pages are true: the example runs, figures are those of the files."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.advantage import ESTIMATORS
from ajet.core.environment.registry import BUILT_IN, PREFIXED
from ajet.core.update.losses import LOSSES
from benchmarks.table import BEGIN, END, PAGE, table
from scripts.guide_blocks import run
from tests.test_guides import ENVIRONMENT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FLAGS = re.DOTALL | re.MULTILINE
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def block(language):
    return re.search(rf'^```{language}(?: title="[^"]+")?\n(.*?)^```$', README, FLAGS)[1]


def test_the_example_runs_as_it_is_printed(tmp_path):
    """The first bash block makes the environment that runs this test."""
    text = README.replace(block("bash"), "true\n", 1)
    (tmp_path / "page.md").write_text(text)
    done = list(run(tmp_path / "page.md", tmp_path, ENVIRONMENT, long=False))
    assert "ended     ok" in done[-1].output


def test_every_environment_estimator_and_loss_is_named():
    text = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("algorithms", "guides/game"))
    names = [*BUILT_IN, *PREFIXED, *ESTIMATORS, *LOSSES, "traj_env_agent", "step_env_agent"]
    assert [name for name in names if f"`{name}" not in text and name != "gymnasium"] == []


def test_the_readme_is_read_in_minutes():
    assert len(README.split()) <= 700


def test_the_example_fits_in_a_glance():
    lines = [line for line in block("python").splitlines() if line and "import" not in line]
    assert len(lines) <= 10


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_that_is_shown_exists(page):
    for line in re.findall(r"^ajet (.*?)(?:  +#.*)?$", page.read_text(), re.MULTILINE):
        words = line.split()
        name = words[0] if not words[0].startswith("-") else "train"
        help_text = CliRunner().invoke(app, [name, "--help"]).output
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text, line


def test_the_figures_are_those_of_the_files():
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


def test_the_figures_of_the_readme_are_among_them():
    rows = re.findall(r"^\| [^|]+ \| (\d[^|]*) \|$", README, re.MULTILINE)
    assert len(rows) == 4
    assert [figure for figure in rows if f"| {figure}" not in table()] == []


def test_every_file_that_is_linked_is_there():
    for page in [ROOT / "README.md", ROOT / "AGENTS.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=FLAGS)
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            is_made = re.search(
                r"reference/|^(python|run_folder|metrics)\.md$", target
            )  # make site
            assert is_made or target.startswith("http") or (page.parent / target).exists(), (
                page,
                target,
            )
