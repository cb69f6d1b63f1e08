"""A small file is whole or as it was, on the disk before it has its name, in UTF-8 everywhere."""

import os
import subprocess
import sys

import pytest

from ajet.core.errors import CheckpointError
from ajet.core.record.atomic_file import write_text_atomically


def test_the_text_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    path, seen, fsync = tmp_path / "state.json", [], os.fsync
    path.write_text("old")

    def watched(descriptor):
        fsync(descriptor)
        (aside,) = (each for each in tmp_path.iterdir() if each != path)
        is_aside = os.fstat(descriptor).st_ino == aside.stat().st_ino
        seen.append((is_aside, aside.read_text("utf-8"), path.read_text("utf-8")))

    monkeypatch.setattr(os, "fsync", watched)  # the system's call: a power cut cannot be tested
    write_text_atomically(path, "new")
    assert seen == [(True, "new", "old")]
    assert path.read_text("utf-8") == "new" and list(tmp_path.iterdir()) == [path]


def test_the_text_is_utf8_whatever_the_locale(tmp_path):
    code = "from pathlib import Path; from ajet.core.record.atomic_file import *; "
    code += f"write_text_atomically(Path({str(tmp_path / 'a')!r}), '\\u00e9')"
    ascii_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | ascii_locale)
    assert (tmp_path / "a").read_bytes() == b"\xc3\xa9"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(CheckpointError, match="absent/a cannot be written: No such file") as caught:
        write_text_atomically(tmp_path / "absent" / "a", "x")
    assert "\n" not in str(caught.value)


def test_a_failed_atomic_write_leaves_no_temporary_file(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(CheckpointError, match="a is a folder, where a file is written; move"):
        write_text_atomically(tmp_path / "a", "x")
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
