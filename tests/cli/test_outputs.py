"""What a command line names to be written: one rule for every command that has such an option."""

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from typer.models import OptionInfo
from typer.testing import CliRunner

from ajet.cli.launcher import COMMANDS, FORMER_NAMES, SUBCOMMANDS, app
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import write_output
from ajet.read.reports.suite_report import SuiteReport
from tests.e2e.test_read_only_folders import AS_A_USER

FILES = {
    "audit --out": "audit run --out there.json",
    "why --out": "why ./run --out there.json",
    "convert --out": "convert lake.yaml --from roll --out there.yaml",
    "distill-data --out": "distill-data run --out there.jsonl",
    "eval --out": "eval --conf none.yaml --out there.json",
    "export --gguf": "export step_1 --gguf there.gguf",
    "fork --out": "fork run 0001 --turn 0 --out there.json",
    "optimize-prompt --out": "optimize-prompt --conf none.yaml --out there.yaml",
    "prepare-data --out": "prepare-data arithmetic --num-train 2 --num-test 2 --out data",
    "schema --out": "schema --out there.json",
    "trace --perfetto": "trace run --perfetto there.json",
    "view --export": "view run --export there.html",
}
"""The commands that write files, each with a line that would write over one of `THERE`."""
FOLDERS = {"export --out": "export step_1 --out data", "rebuild --out": "rebuild run --out data"}
"""Those that write a folder, which must be new."""
BESIDE = [
    "optimize-prompt --conf none.yaml",  # none_prompt.yaml
    "eval --suite gsm8k --data none --out other.json",  # other.md
    "eval --compare a.json b.json --out page.html",  # page.json
    "prepare-data arithmetic --num-train 2 --num-test 2 --out tests",  # tests/test.jsonl
]
"""Lines that name no file of `THERE`, and would write over one all the same."""
THERE = [
    "there.json",
    "there.yaml",
    "there.jsonl",
    "there.html",
    "there.gguf",
    "data/train.jsonl",
    "none_prompt.yaml",
    "other.md",
    "page.json",
    "tests/test.jsonl",
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    for name in THERE:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"question": "mine", "answer": "1"}))
    (tmp_path / "lake.yaml").write_text("exp_name: lake\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str):
    return CliRunner().invoke(app, command.split(), terminal_width=300)


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_tables_have_every_option_that_names_what_is_written():
    found = set()
    former = {name: words.split() for name, words in FORMER_NAMES.items() if " " in words}
    places = {name: place for name, place in COMMANDS.items() if name not in SUBCOMMANDS}
    places |= {name: SUBCOMMANDS[group][command] for name, (group, command) in former.items()}
    for command, place in places.items():
        module, _, function = place.partition(":")
        parameters = inspect.signature(
            getattr(import_module(module), function), eval_str=True
        ).parameters
        for name, parameter in parameters.items():
            kind, *options = get_args(parameter.annotation) or [None]
            is_path = kind is Path or Path in get_args(kind)
            for option in options:
                said = (option.help or "").lower() if isinstance(option, OptionInfo) else ""
                if is_path and any(word in said for word in ("write", "written", "save")):
                    found.add(f"{command} --{name}")
                    assert f"{command} --{name}" in FOLDERS or "overwrite" in parameters
    assert found == {*FILES, *FOLDERS}


@pytest.mark.parametrize("command", [*FILES.values(), *BESIDE])
def test_a_file_that_is_there_is_written_over_by_overwrite_alone(command, folder):
    """None of the runs, configs and models that the commands name is there: it is refused before
    anything is looked for."""
    before = contents(folder)
    result = run(command)
    [line] = result.stderr.splitlines()
    assert result.exit_code == 1 and line.endswith(f"[{Code.OUTPUT_EXISTS}]")
    assert " exists already; add --overwrite to replace it, or name another " in line
    assert contents(folder) == before
    again = run(f"{command} --overwrite")
    assert str(Code.OUTPUT_EXISTS) not in again.stderr


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("eval --compare a.json b.json --out new", "new.html: is a folder; name a file in it"),
        ("eval --suite gsm8k --data none --out tab.txt", "tab.md: is a folder; name a file in it"),
        ("eval --compare a.json b.json --out no/x", "no/x.json: the folder no does not exist"),
    ],
)
def test_every_file_that_would_be_written_is_checked_before_anything_is_measured(
    command, problem, folder
):
    for name in ("new.html", "tab.md"):
        (folder / name).mkdir()
    for overwrite in ("", " --overwrite"):
        result = run(f"{command}{overwrite}")
        assert result.exit_code == 2
        assert f"Invalid value for '--out': {problem}" in " ".join(result.stderr.split())


def test_a_file_in_a_folder_that_may_not_be_written_is_refused_though_it_may_be_replaced(folder):
    """It would be written beside itself first, and renamed."""
    (folder / "kept").mkdir()
    (folder / "kept/there.json").write_text("{}")
    (folder / "kept").chmod(0o555)
    ajet = [*AS_A_USER, sys.executable, "-m", "ajet.cli.launcher"]
    command = [*ajet, "audit", "run", "--out", "kept/there.json", "--overwrite"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "'--out': kept/there.json: no right to write there; name another" in result.stderr


def test_a_table_of_benchmarks_never_replaces_its_own_json():
    files = SuiteReport.files(Path("x/result.md"))
    assert files == (Path("x/result.json"), Path("x/result.md"))
    assert SuiteReport.files(Path("result")) == (Path("result"), Path("result.md"))


@pytest.mark.parametrize("command", FOLDERS.values())
def test_a_folder_that_is_written_must_be_new(command, folder):
    (folder / "step_1").mkdir()
    before = contents(folder)
    result = run(command)
    [line] = result.stderr.splitlines()
    assert f"{folder}/data: exists already; name a folder that does not" in line
    assert contents(folder) == before


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_prepare_data_replaces_its_own_files_and_no_others(form, folder):
    command = f"prepare-data arithmetic --num-train 2 --num-test 1 --format {form} --out new"
    assert run(command).exit_code == 0
    first = contents(folder / "new")
    assert set(first) == {f"train.{form}", f"test.{form}"}
    assert run(f"{command} --seed 1").exit_code == 1 and contents(folder / "new") == first
    assert run(f"{command} --seed 1 --overwrite").exit_code == 0
    assert set(contents(folder / "new")) == set(first) and contents(folder / "new") != first


def test_a_file_that_cannot_be_written_wholly_is_as_it_was(folder, monkeypatch):
    """Bytes are written as text is: beside the file, and then renamed over it."""
    write_output(folder / "there.json", b"\x00\xff")
    assert (folder / "there.json").read_bytes() == b"\x00\xff"
    before = contents(folder)
    result = run("prepare-data arithmetic --num-train 2 --num-test 2 --out there.json/data")
    assert result.exit_code == 1 and "was not written: Not a directory" in result.stderr
    assert contents(folder) == before
