"""The README and the pages are true: the example runs, figures are those of the files, what is
shown of commands and configs is there."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ajet.cli.launcher import SUBCOMMANDS, app
from ajet.core.advantage import ESTIMATORS
from ajet.core.config.section import leaves
from ajet.core.config.tree import AjetConfig
from ajet.core.losses import LOSSES
from ajet.core.user_code.plugins import plugins
from benchmarks.table import BEGIN, END, PAGE, table
from scripts.guide_blocks import run
from tests.test_guides import ENVIRONMENT

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
FLAGS = re.DOTALL | re.MULTILINE
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "tutorial").glob("*/README.md")),
]
"""Whatever a person reads to use ajet."""
PRESENT = [page for page in PAGES if page.parent.name != "adr" and page.name != "log.md"]
"""Those that tell the present: decisions and the log keep the names of their time."""
OF_OTHERS = {"agentjet.md", "convert.md"}
"""Pages that name keys and modules of other systems."""


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
    environments = (*plugins("ajet.environments"), *plugins("ajet.environment_prefixes"))
    names = [*environments, *ESTIMATORS, *LOSSES, "traj_env_agent", "step_env_agent"]
    assert [name for name in names if f"`{name}" not in text and name != "gymnasium"] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_that_is_shown_exists(page):
    for line in re.findall(r"^ajet (.*?)(?:  +#.*)?$", page.read_text(), re.MULTILINE):
        words = line.split()
        name = words[0] if not words[0].startswith("-") else "train"
        command = words[:2] if name in SUBCOMMANDS else [name]
        help_text = CliRunner().invoke(app, [*command, "--help"]).output
        for option in (word for word in words if word.startswith("--")):
            assert option in help_text, line


def test_no_shell_takes_a_class_for_a_file_to_write():
    """`file.py->Class` without quotes writes into a file `Class`."""
    shown = [
        (page.name, line)
        for page in PAGES
        for language, text in re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), FLAGS)
        for line in (text.splitlines() if language == "bash" else ())
    ]
    assert len(shown) > 200
    unquoted = [(page, re.sub(r"#.*|'[^']*'|\"[^\"]*\"", "", line)) for page, line in shown]
    assert [each for each in unquoted if "->" in each[1]] == []


def test_every_config_that_is_shown_has_keys_and_values_that_there_are():
    shown = [
        (page.name, yaml.safe_load(text))
        for page in PRESENT
        for text in re.findall(r"^```yaml[^\n]*\n(.*?)^```$", page.read_text(), FLAGS)
    ]
    configs = [(page, found) for page, found in shown if "ajet" in found]
    assert len(configs) > 20
    for _, found in configs:
        AjetConfig.model_validate(found)


def plain(page):
    """The text of a page without what commands print, and without Markdown's backslashes."""
    return re.sub(r"^```text.*?^```$", "", page.read_text(), flags=FLAGS).replace("\\_", "_")


def test_every_key_that_a_page_names_is_in_the_tree():
    tree = AjetConfig()
    roots = {"ajet": tree.ajet, "trinity": tree.trinity}  # `verl.trainer` is also verl's module
    known = [leaf.path for root, section in roots.items() for leaf in leaves(section, root)]
    sections = {".".join(path.split(".")[:2]) for path in known if path.count(".") > 1}
    named = {
        (page.name, key)
        for page in PRESENT
        if page.name not in OF_OTHERS
        for key in re.findall(r"(?<![\w./])(?:ajet|trinity)(?:\.\w+)+", plain(page))
        if ".".join(key.split(".")[:2]) in sections
    }
    assert len(named) > 100
    assert [
        (page, key)
        for page, key in sorted(named)
        if not any(f"{path}.".startswith(f"{key}.") for path in known)
        and not any(key.startswith(f"{path}.") for path in known)
    ] == []


def test_the_defaults_beside_trls_are_those_of_the_tree():
    page = (ROOT / "docs/coming_from/trl.md").read_text()
    rows = re.findall(r"^\| [^|]*`([\w.]+)`\)? \| [^|]+ \| ([^|`]+) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    known = [*leaves(AjetConfig().ajet, "ajet")]
    for name, shown in rows:
        found = [leaf for leaf in known if leaf.path.endswith(f".{name}")]
        leaf = min(found, key=lambda leaf: len(leaf.path))  # not that of validation
        assert str(leaf.value) == shown, leaf.path


def test_the_figures_are_those_of_the_files():
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table().strip()


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
