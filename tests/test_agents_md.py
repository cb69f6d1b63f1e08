"""AGENTS.md and the walk through a step (docs/how_it_works.md) name what exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "AGENTS.md").read_text()
STEP = (ROOT / "docs" / "how_it_works.md").read_text()
WALK = re.findall(r"^\| `(ajet/[\w/]+\.py)` \| `([\w.]+)` \|", STEP, re.MULTILINE)


def defined_in(path):
    """Every function of a file, by its qualified name."""
    names = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        names.add(getattr(node, "name", None))
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{getattr(inner, 'name', None)}" for inner in node.body}
    return names


@pytest.mark.parametrize(("path", "function"), WALK)
def test_a_file_of_the_walk_defines_its_function(path, function):
    assert function in defined_in(path)


def test_every_path_that_is_named_is_there():
    named = re.findall(r"`((?:ajet|docs|scripts|benchmarks|tutorial)/[\w./]+)`", TEXT)
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []
