"""docs/faults.md is true: its rows are all there, and every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def functions(path):
    """The functions of a file, by name; none where the file is absent."""
    if not (ROOT / path).is_file():
        return set()
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_page_names_exists():
    assert len(NAMED) > 60
    assert [f"{path}::{name}" for path, name in NAMED if name not in functions(path)] == []


def test_each_fault_has_its_row():
    assert [int(row) for row in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)] == [*range(1, 26)]
