"""The table of docs/convert.md is that of its rows, and its rows are true."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "convert_table.py"
SPEC = importlib.util.spec_from_file_location("convert_table", PATH)
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
ROWS = [row for rows in script.read_rows().values() for row in rows]
BY_KEY = [row for row in ROWS if row.key]


def test_the_document_has_the_table_of_the_rows():
    document = script.DOCUMENT.read_text()
    assert script.with_table(document) == document, "run python scripts/convert_table.py"


def test_each_row_names_a_test_that_is_collected_and_a_line_that_ajet_says():
    assert list(script.problems(ROWS)) == []
    assert {row.system for row in ROWS} == {"AgentJet", "verl", "ROLL", "ChatLearn"}
    assert len({(row.system, row.feature) for row in ROWS}) == len(ROWS) > 90


@pytest.mark.parametrize("row", BY_KEY, ids=lambda row: row.key)
def test_a_key_of_the_table_is_left_out_in_a_line(row):
    name = row.key.partition("=")[0].partition("={")[0]
    line = script.left_out_line(row.system, row.key)
    assert line.startswith(name.split(".")[0]) and ": " in line and "\n" not in line
