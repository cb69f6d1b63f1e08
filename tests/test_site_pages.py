"""The reference says what the code says, and the site loads nothing from elsewhere."""

import re
from pathlib import Path

import pytest

from ajet.cli.launcher import COMMANDS
from ajet.core.config.section import leaves
from ajet.core.config.tree import AjetConfig
from scripts.site_pages import (
    Pages,
    config_pages,
    escaped,
    foreign_assets,
    is_documented,
    is_searched,
    lost_links,
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


def test_what_a_sentence_says_is_shown_and_is_no_markup():
    assert escaped("in launcher_record/<name>, a*b*c, `x<y`") == (
        r"in launcher_record/&lt;name>, a\*b\*c, `x<y`"
    )
    [text] = [text for path, text in config_pages() if path == "ajet"]
    assert "auto is launcher_record/&lt;experiment_name>." in text


def test_source_files_and_single_decisions_are_not_searched():
    places = ("source/ajet/assembly.py.md", "adr/0001-waves.md", "adr/README.md", "runs.md")
    assert [is_searched(place) for place in places] == [False, False, True, True]


def test_every_command_is_in_the_list_of_commands():
    text = (ROOT / "docs/reference/index.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if not re.search(rf"\bajet {name} ", text)] == []


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


def test_a_link_that_leaves_the_pages_leads_to_a_page_of_that_file():
    pages = Pages()
    pages.copy("guides/game.md", ROOT / "docs/guides/game.md")
    link = "(../source/tutorial/example_frozen_lake/README.md)"
    assert link in pages.texts["guides/game.md"]
    assert pages.texts["source/tutorial/example_frozen_lake/README.md"].startswith("# ")


def test_a_link_between_the_languages_leads_to_a_page_of_the_other_site():
    pages = Pages()
    for place in ("zh/guides/game.md", "guides/game.md", "zh/index.md"):
        pages.copy(place, ROOT / "docs" / place)
    assert "[中文](../zh/guides/game.html)" in pages.texts["guides/game.md"]
    chinese = pages.texts["zh/guides/game.md"]
    assert "[English](../../guides/game.html)" in chinese
    assert "(../../algorithms.html)" in chinese and "(../coming_from/roll.md)" in chinese
    assert "(../../source/tutorial/example_sokoban/index.html)" in chinese
    assert "(../adr/index.html)" in pages.texts["zh/index.md"]


def test_a_link_that_leads_to_no_file_is_found(tmp_path):
    (tmp_path / "zh").mkdir()
    (tmp_path / "a.html").write_text('<a href="zh/b.html#part">b</a> <a href="https://x.example">')
    (tmp_path / "zh/b.html").write_text(
        '<a href="../a.html">a</a> <a class="c" href="a.html">a</a>'
    )
    assert lost_links(tmp_path) == ["zh/b.html: a.html"]


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
