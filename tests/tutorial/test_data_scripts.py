"""The scripts that write the tutorials' data do not write over files without being told to."""

import sys
from importlib import import_module

import pytest

from tutorial.example_repairs import data


@pytest.mark.parametrize(
    ("tutorial", "file"),
    [
        ("gsm8k", "supervised.jsonl"),
        ("gsm8k", "test.jsonl"),
        ("function_calling", "parallel.jsonl"),
        ("function_calling", "leaks.json"),
    ],
)
def test_a_file_that_is_there_is_refused_before_anything_is_read(
    tutorial, file, tmp_path, monkeypatch, capsys
):
    script = import_module(f"tutorial.example_{tutorial}.data")
    (tmp_path / file).write_text("mine")
    monkeypatch.setattr(sys, "argv", ["data", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        script.main()
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 2
    assert line.endswith(f"{tmp_path / file} exists already; add --overwrite to replace it")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(file, "mine")]


def test_overwrite_replaces_files(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "FOLDER", tmp_path)
    (tmp_path / "test.jsonl").write_text("mine")
    monkeypatch.setattr(sys, "argv", ["data"])
    with pytest.raises(SystemExit):
        data.main()
    assert not (tmp_path / "train.jsonl").exists()
    monkeypatch.setattr(sys, "argv", ["data", "--overwrite"])
    data.main()
    lines = {path.stem: len(path.read_text().splitlines()) for path in tmp_path.iterdir()}
    assert lines == {"train": 24, "test": 8}
