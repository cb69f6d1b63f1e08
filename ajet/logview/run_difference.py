"""Compares two starts of runs: their configs key by key, and the user's code line by line.

    starts_of(folder)                  the starts that the folder keeps, the first first
    difference(Start(a, 1), Start(b, 2))

Each start of a run keeps its own copy (core/run/attempt_record.py); a folder of an earlier release
has one, that of its last start. Secrets are replaced in the copies of configs already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml

from ajet.core.config.nested import flatten
from ajet.core.config.yaml_codec import from_yaml
from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.run.attempt_record import read_attempts

MAX_FILE, MAX_FILES = 200_000, 200
CONTEXT = 3


@dataclass(frozen=True, slots=True)
class Start:
    """Names one start of a run; `number` is None for what a folder without attempts keeps."""

    folder: RunFolder
    number: int | None

    @property
    def path(self) -> Path:
        return self.folder.path if self.number is None else self.folder.attempt(self.number)


def starts_of(folder: RunFolder) -> dict[str, str]:
    """Returns the starts that a folder keeps: the name of each, and its description in one line."""
    attempts = {str(each.number): each.describe() for each in read_attempts(folder)}
    return attempts or {"": "its last start"}


def difference(left: Start, right: Start) -> dict[str, Any]:
    """Returns the keys whose values differ, and each file that differs as lines of a diff."""
    configs = [read_config(each.path / "config.yaml") for each in (left, right)]
    keys = sorted(configs[0].keys() | configs[1].keys())
    codes = [_code(each.path / "code") for each in (left, right)]
    names = sorted(codes[0].keys() | codes[1].keys())
    return {
        "config": [
            {"key": key, "left": configs[0].get(key), "right": configs[1].get(key)}
            for key in keys
            if configs[0].get(key) != configs[1].get(key)
        ],
        "code": [
            _file_difference(name, *(code.get(name) for code in codes))
            for name in names
            if codes[0].get(name) != codes[1].get(name)
        ],
        "num_files": len(names),
    }


def read_config(file: Path) -> dict[str, str]:
    """Returns a stored config flat, with its values as text; an absent one is empty."""
    if not is_file(file):
        return {}
    try:
        values = from_yaml(file.read_text(encoding="utf-8"))
        return {name: str(value) for name, value in flatten(values).items()}
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{file} cannot be read: {reason}", code=Code.RECORD_UNREADABLE
        ) from error


def _code(folder: Path) -> Mapping[str, str]:
    """Returns the stored files by their paths."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())[:MAX_FILES]
    try:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()[:MAX_FILE].decode(
                "utf-8", "backslashreplace"
            )
            for path in files
        }
    except OSError as error:
        raise CheckpointError(
            f"{folder} cannot be read: {error.strerror}", code=Code.RECORD_UNREADABLE
        ) from error


def _file_difference(name: str, left: str | None, right: str | None) -> dict[str, Any]:
    before, after = ((text or "").splitlines() for text in (left, right))
    lines = list(unified_diff(before, after, n=CONTEXT, lineterm=""))[2:]  # without the names
    return {
        "name": name,
        "in_left": left is not None,
        "in_right": right is not None,
        "lines": lines,
    }
