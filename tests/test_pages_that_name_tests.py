"""What the pages name exists: tests, files, and parts of the script for a GPU."""

import ast
import re
from pathlib import Path

import pytest

from scripts.gpu_first_contact import PARTS

ROOT = Path(__file__).parents[1]
PATHS = r"\b(?:ajet|benchmarks|scripts|tests|tutorial)/[\w/]+\.(?:py|yaml)"
PAGES = [path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md"]


def test_every_test_that_the_page_of_faults_names_exists():
    page = (ROOT / "docs" / "faults.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    for path, names in re.findall(r"^- `(tests/[\w/]+\.py)`:((?:\s+`\w+`,?)+)", page, re.MULTILINE):
        named += [(path, name) for name in re.findall(r"`(\w+)`", names)]
    nodes = {path: ast.parse((ROOT / path).read_text("utf-8")).body for path, _ in named}
    defined = {path: {getattr(node, "name", "") for node in body} for path, body in nodes.items()}
    assert named and [name for path, name in named if name not in defined[path]] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_and_part_that_a_page_names_exists(page):
    text = page.read_text("utf-8")
    assert [path for path in re.findall(PATHS, text) if not (ROOT / path).is_file()] == []
    parts = {part for parts in re.findall(r"--parts ([\w ]+)", text) for part in parts.split()}
    assert parts <= set(PARTS)
