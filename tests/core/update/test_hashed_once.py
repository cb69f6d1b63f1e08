"""A large file of a checkpoint is hashed once in a process, and again when it has changed."""

import hashlib
import os
from pathlib import Path

import pytest

from ajet.core.checkpoint.manifest import REMEMBERED, fingerprint


@pytest.fixture
def hashed(monkeypatch) -> list[str]:
    """Returns the names of the files that are hashed from now on."""
    names, file_digest = [], hashlib.file_digest

    def counted(file, algorithm):
        names.append(Path(file.name).name)
        return file_digest(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return names


def sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)
    return path


def test_a_large_file_is_hashed_once_under_whatever_name(tmp_path, hashed):
    folder = tmp_path / ".writing_step_000001"
    folder.mkdir()
    first = fingerprint(sparse(folder / "large", REMEMBERED))
    renamed = folder.rename(tmp_path / "step_000001")
    assert fingerprint(renamed / "large") == first
    assert first["size"] == REMEMBERED
    assert hashed == ["large"]


def test_a_changed_byte_and_another_file_of_that_name_are_seen(tmp_path, hashed):
    large = sparse(tmp_path / "large", REMEMBERED)
    whole = fingerprint(large)
    with large.open("r+b") as file:
        file.seek(1000)
        file.write(b"\1")
    changed = fingerprint(large)
    assert changed["size"] == whole["size"] and changed["sha256"] != whole["sha256"]
    times = large.stat()
    other = sparse(tmp_path / "other", REMEMBERED)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(large)
    assert fingerprint(large) == whole
    assert hashed == ["large"] * 3


def test_a_small_file_is_hashed_each_time(tmp_path, hashed):
    small = sparse(tmp_path / "small", REMEMBERED - 1)
    assert fingerprint(small) == fingerprint(small)
    assert hashed == ["small", "small"]
