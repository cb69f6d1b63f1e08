"""`ajet why`: what a code means, all of them, and codes that there are not."""

from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from ajet.cli.launcher import app
from ajet.core.errors.codes import Code
from ajet.core.record.warning_names import WARNINGS, WarningName

ROOT = Path(__file__).parents[2]


def explain(*args: str):
    return CliRunner().invoke(app, ["why", *args])


@pytest.mark.parametrize("written", ["AJ-CFG-004", "cfg-004", "[AJ-CFG-004]"])
def test_a_code_is_explained_however_it_is_copied(written):
    result = explain(written)
    assert result.exit_code == 0
    first, *_ = result.stdout.splitlines()
    assert first == "AJ-CFG-004: no such key"
    code = Code.UNKNOWN_KEY
    assert code.meaning in result.stdout and f"What to do: {code.remedy}" in result.stdout
    assert f"Usual causes: {code.causes}" in result.stdout


def test_without_a_code_all_are_listed_by_area():
    lines = explain().stdout.splitlines()
    assert [line for line in lines if line.startswith("  AJ-")] == [
        f"  {code}  {code.title}"
        for area in dict.fromkeys(line[5:8] for line in lines if line.startswith("  AJ-"))
        for code in sorted(Code, key=str)
        if code.value.startswith(f"AJ-{area}-")
    ]
    assert lines[:2] == ["The command line", "  AJ-USE-001  no such command"]


@pytest.mark.parametrize("name", get_args(WarningName))
def test_a_warning_is_explained_by_its_name_and_documented(name):
    kind = WARNINGS[name]
    assert explain(name).stdout == f"{name}\n\n{kind.when}\n\nWhat to do: {kind.look}\n"
    assert f"  {name}\n" in explain().stdout
    assert f"`{name}`" in (ROOT / "docs/warnings.md").read_text()


def test_every_name_of_a_warning_has_its_explanation_and_no_other():
    assert tuple(WARNINGS) == get_args(WarningName)


def test_a_misspelt_warning_names_the_close_one():
    assert "did you mean no_signal?" in explain("no_singal").stderr


def test_an_unknown_code_names_close_ones():
    result = explain("AJ-CFG-400")
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: AJ-CFG-400: neither a folder nor the code of an error nor the name of a warning; "
        "did you mean AJ-CFG-"
    )
    assert "`ajet why` lists all" in explain("nothing").stderr
