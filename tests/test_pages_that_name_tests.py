"""docs/faults.md and docs/gpus.md are true: their rows are all there, and what they name exists."""

import ast
import re
from pathlib import Path

import pytest

from scripts.gpu_first_contact import PARTS

ROOT = Path(__file__).parents[1]
FAULTS, GPUS = ((ROOT / "docs" / name).read_text("utf-8") for name in ("faults.md", "gpus.md"))


def functions(path):
    """The functions of a file, by name; none where the file is absent."""
    if not (ROOT / path).is_file():
        return set()
    nodes = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("page", "at_least"), [(FAULTS, 60), (GPUS, 50)], ids=["faults", "gpus"])
def test_every_test_that_the_page_names_exists(page, at_least):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    assert len(named) > at_least
    assert [f"{path}::{name}" for path, name in named if name not in functions(path)] == []


def test_each_fault_has_its_row():
    assert [int(row) for row in re.findall(r"^\| (\d+) \|", FAULTS, re.MULTILINE)] == [
        *range(1, 26)
    ]


def test_every_file_and_part_of_the_script_that_the_page_of_gpus_names_exists():
    paths = re.findall(r"\b(?:ajet|benchmarks|scripts|tests|tutorial)/[\w/]+\.(?:py|yaml)", GPUS)
    assert "scripts/gpu_first_contact.py" in paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    parts = {part for named in re.findall(r"--parts ([\w ]+)", GPUS) for part in named.split()}
    assert parts == set(PARTS)


def test_every_row_of_the_page_of_gpus_says_by_what_it_is_shown_and_what_tries_it():
    rows = [line.split(" | ") for line in GPUS.splitlines() if "`tests/" in line]
    assert len(rows) > 20
    assert [row[0] for row in rows if len(row) != 5 or "::test_" not in row[3]] == []
    tries = [row[0] for row in rows if not re.search("--parts|no part|below", row[4])]
    assert tries == []
