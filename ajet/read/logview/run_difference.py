"""Compares two starts of runs: their configs key by key, and the user's code line by line.

Each start of a run keeps copies (core/run/attempt_record.py), with secrets replaced. A folder of an
older release has only those of its last start.
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
from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.run.attempt_record import read_attempts

MAX_FILE, MAX_FILES = 200_000, 200
CONTEXT = 3


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run; `number` is None for the copies in a folder without attempts."""

    folder: RunFolder
    number: int | None

    @property
    def path(self) -> Path:
        return self.folder.path if self.number is None else self.folder.attempt(self.number)


def starts_of(folder: RunFolder) -> dict[str, str]:
    """Returns the starts that a folder keeps, oldest first: names and one-line descriptions."""
    attempts = {str(attempt.number): attempt.describe() for attempt in read_attempts(folder)}
    return attempts or {"": "its last start"}


def difference(left_start: Start, right_start: Start) -> dict[str, Any]:
    """Returns the keys whose values differ, and the files that differ as lines of a diff."""
    configs = [read_config(start.path / "config.yaml") for start in (left_start, right_start)]
    keys = sorted(configs[0].keys() | configs[1].keys())
    codes = [_code(start.path / "code") for start in (left_start, right_start)]
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
    """Returns a stored config as flat keys with their values as text; empty if there is none."""
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


def _file_difference(name: str, left_text: str | None, right_text: str | None) -> dict[str, Any]:
    before, after = ((text or "").splitlines() for text in (left_text, right_text))
    lines = list(unified_diff(before, after, n=CONTEXT, lineterm=""))[2:]  # without the names
    return {
        "name": name,
        "in_left": left_text is not None,
        "in_right": right_text is not None,
        "lines": lines,
    }
