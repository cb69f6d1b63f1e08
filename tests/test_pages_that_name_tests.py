"""docs/faults.md and docs/gpus.md are true: they are complete, and what they name exists."""

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
    for path, names in re.findall(r"^- `(tests/[\w/]+\.py)`:((?:\s+`\w+`,?)+)", page, re.MULTILINE):
        named += [(path, name) for name in re.findall(r"`(\w+)`", names)]
    assert len(named) > at_least
    assert [f"{path}::{name}" for path, name in named if name not in functions(path)] == []


def test_each_fault_has_its_section():
    numbers = re.findall(r"^### (\d+)\. ", FAULTS, re.MULTILINE)
    assert [int(number) for number in numbers] == [*range(1, 27)]


PATHS = r"\b(?:ajet|benchmarks|scripts|tests|tutorial)/[\w/]+\.(?:py|yaml)"
PAGES = [path for path in (ROOT / "docs").glob("*.md") if path.name != "log.md"]
READMES = sorted(ROOT.glob("ajet/*/README.md"))


def test_every_file_that_a_page_names_exists():
    """The log tells of the past, and decisions of the time when they were made."""
    named = [(page, path) for page in PAGES for path in re.findall(PATHS, page.read_text("utf-8"))]
    assert len(named) > 200
    assert [(page.name, path) for page, path in named if not (ROOT / path).is_file()] == []


def test_every_file_that_the_readme_of_a_package_names_is_there():
    """By its place in the package, or below ajet/."""
    named = [
        (readme.parent, path)
        for readme in READMES
        for path in re.findall(r"`((?:[\w-]+/)*[\w-]+\.py)`", readme.read_text("utf-8"))
    ]
    assert len(named) > 50
    assert [
        f"{folder.name}: {path}"
        for folder, path in named
        if not any((place / path).is_file() for place in (folder, ROOT / "ajet", ROOT))
    ] == []


def test_every_file_with_its_folder_that_a_docstring_names_exists():
    folders = {path.name for path in (ROOT / "ajet").rglob("*") if path.is_dir()}
    files = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("ajet/**/*.py")}
    named = [
        (file, path)
        for file in sorted(files)
        for path in re.findall(r"(?<![\w/.-])\w+(?:/\w+)*/\w+\.py\b(?!->)", _docstring(file))
        if path.split("/")[0] in folders
    ]
    assert len(named) > 20
    assert [
        f"{file}: {path}"
        for file, path in named
        if not any(each.endswith(f"/{path}") or each == path for each in files)
    ] == []


def _docstring(file):
    return ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or ""


def test_every_file_and_part_of_the_script_that_the_page_of_gpus_names_exists():
    assert "scripts/gpu_first_contact.py" in re.findall(PATHS, GPUS)
    parts = {part for named in re.findall(r"--parts ([\w ]+)", GPUS) for part in named.split()}
    assert parts == set(PARTS)


def test_every_row_of_the_page_of_gpus_says_by_what_it_is_shown_and_what_tries_it():
    rows = [line.split(" | ") for line in GPUS.splitlines() if "`tests/" in line]
    assert len(rows) > 20
    assert [row[0] for row in rows if len(row) != 5 or "::test_" not in row[3]] == []
    tries = [row[0] for row in rows if not re.search("--parts|no part|below", row[4])]
    assert tries == []
