"""The reference says what the code says, and the site loads nothing from elsewhere."""

import re
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

import ajet
from ajet.cli.launcher import COMMANDS, SUBCOMMANDS
from ajet.core.config.section import Section, Since, leaves
from ajet.core.config.tree import AjetConfig
from scripts.site_pages import (
    Pages,
    command_pages,
    config_pages,
    expanded,
    foreign_assets,
    is_documented,
    key_rows,
    python_page,
    run_folder_page,
    type_text,
)

ROOT = Path(__file__).parents[1]


def test_every_key_of_the_tree_is_on_one_page_with_its_sentence():
    shown = {}
    for path, text in config_pages():
        for key, what in re.findall(r"^\| `([^`]+)` \| .*? \| (.*?) \| [^|]* \|$", text, re.M):
            shown[f"{path}.{key}"] = what
    tree = AjetConfig()
    roots = {"ajet": tree.ajet, "verl": tree.verl, "trinity": tree.trinity}
    known = [leaf.path for root, section in roots.items() for leaf in leaves(section, root)]
    assert sorted(shown) == sorted(known)
    assert shown["ajet.seed"] == "The run's seed; every draw of the run follows from it."


def test_a_key_says_which_backbones_honour_it_and_what_the_others_do():
    page = dict(config_pages())["ajet.rollout"]
    [row] = [line for line in page.splitlines() if line.startswith("| `router.skew` ")]
    assert row.endswith("| verl, trinity; debug: *no effect: there is one engine, in process* |")
    [row] = [line for line in page.splitlines() if line.startswith("| `num_repeat` ")]
    assert row.startswith("| `num_repeat` | whole number, `4` |") and row.endswith("| all |")


class Bursts(Section):
    size: Annotated[int, Since("0.2.0")] = Field(default=1, description="Calls at a time.")


def test_a_key_that_a_later_version_brought_says_which():
    [row] = key_rows("size", Bursts.model_fields["size"])
    assert row == ("`size`", "whole number, `1`", "Calls at a time. *Since 0.2.0.*", "all")


def test_every_command_is_in_the_list_of_commands():
    text = (ROOT / "docs/reference/index.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"\bajet {name} ", text)] == []


def test_every_command_has_a_page_and_every_public_name_an_entry():
    pages = dict(command_pages())
    subcommands = {f"{group}-{name}" for group, names in SUBCOMMANDS.items() for name in names}
    assert set(pages) == {*COMMANDS, *subcommands}
    assert "Usage: ajet check [OPTIONS]" in pages["check"]
    assert [name for name in ajet.__all__ if f"::: ajet.{name}\n" not in python_page()] == []
    assert "`episode_id`" in run_folder_page()


def test_metrics_that_the_pages_name_are_in_the_reference():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")]
    named = {
        name
        for page in pages
        for name in re.findall(r"`([a-z_]+/[a-z_…]+)`", page.read_text(encoding="utf-8"))
        if not (ROOT / name).exists()
    }
    assert {"groups/with_advantage", "update/grad_norm"} < named
    assert [name for name in sorted(named) if not is_documented(name)] == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "whole number"),
        (str | None, "text or null"),
        (list[str], "list of text"),
        (dict[str, float], "mapping to number"),
    ],
)
def test_a_type_is_said_in_words(kind, text):
    assert type_text(kind) == text


def test_a_link_that_leaves_the_pages_leads_to_a_page_of_that_file():
    pages = Pages()
    pages.copy("guides/game.md", ROOT / "docs/guides/game.md")
    link = "(../source/tutorial/example_frozen_lake/README.md)"
    assert link in pages.texts["guides/game.md"]
    assert pages.texts["source/tutorial/example_frozen_lake/README.md"].startswith("# ")


def test_a_folder_in_the_navigation_stands_for_its_pages():
    pages = Pages()
    pages.texts = {"a/x.md": "", "b.md": ""}
    nav = [{"A": "a/"}, {"B": "b.md"}]
    assert expanded(nav, pages) == [{"A": [{"x": "a/x.md"}]}, {"B": "b.md"}]


@pytest.mark.parametrize(
    ("page", "is_foreign"),
    [
        ('<script src="https://cdn.example/x.js"></script>', True),
        ('<link href="//fonts.example/a.css" rel="stylesheet">', True),
        ("<style>a{background:url(https://x.example/a.png)}</style>", True),
        ('<a href="https://example.org">elsewhere</a><script src="x.js"></script>', False),
    ],
)
def test_what_a_page_would_load_from_elsewhere_is_found(tmp_path, page, is_foreign):
    (tmp_path / "page.html").write_text(page)
    assert bool(foreign_assets(tmp_path)) == is_foreign
