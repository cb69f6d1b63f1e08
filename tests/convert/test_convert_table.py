"""The table of docs/convert.md is that of its rows, and its rows are true."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "convert_table.py"
SPEC = importlib.util.spec_from_file_location("convert_table", PATH)
script = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(script)
ROWS = [row for rows in script.read_rows().values() for row in rows]
BY_KEY = [row for row in ROWS if row.key]
GOOD = next(row for row in ROWS if row.said)


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


WRONG = [
    ({"test": "tests/convert/test_convert.py::test_nobody_wrote"}, "is collected"),
    ({"test": "tests/nowhere.py::test_each_value_is_that_of_the_source"}, "is collected"),
    ({"test": "tests/convert/test_convert.py::left_out"}, "is collected"),
    ({"said": "a text that …, as nobody says"}, "nothing in ajet says ', as nobody says'"),
    ({"said": ""}, "what is refused has said or key"),
    ({"here": "unchanged"}, "what is refused has said or key, and nothing else has"),
    ({"here": "perhaps"}, "here is 'perhaps'"),
]


@pytest.mark.parametrize(("change", "problem"), WRONG)
def test_a_row_that_is_not_true_is_found(change, problem):
    assert list(script.problems([GOOD])) == []
    assert problem in " ".join(script.problems([replace(GOOD, **change)]))


def test_a_key_that_is_converted_is_no_row_of_what_is_left_out():
    with pytest.raises(ValueError, match="ajet convert does not leave seed=5 out"):
        script.left_out_line("ROLL", "seed=5")


def test_a_stale_document_is_found_and_mended():
    document = script.DOCUMENT.read_text()
    stale = document.replace("runs unchanged", "runs somehow", 1)
    assert script.with_table(stale) == document != stale
    with pytest.raises(ValueError, match="are missing"):
        script.with_table("no marks here")
