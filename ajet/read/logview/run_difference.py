"""Compares two starts of runs: their configs key by key, and the user's code line by line.

Each start of a run keeps copies (core/run/attempt_record.py), with secrets replaced. A folder of an
older release has only those of its last start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ajet.core.config import AjetConfig
from ajet.core.config.nested import flatten
from ajet.core.config.redacted import redacted_config
from ajet.core.config.yaml_codec import from_yaml, to_yaml
from ajet.core.errors import RecordError
from ajet.core.record.run_folder import RunFolder, is_file
from ajet.core.run.attempt_record import read_attempts
from ajet.read.logview.run_status import is_running

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
    attempts = read_attempts(folder)
    texts = {str(attempt.number): attempt.describe() for attempt in attempts}
    if attempts and attempts[-1].end is None and is_running(folder):
        texts[str(attempts[-1].number)] = attempts[-1].describe(without_end="running")
    return texts or {"": "its last start"}


def difference(left_start: Start, right_start: Start) -> dict[str, Any]:
    """Returns the keys whose values differ, and the files that differ as lines of a diff."""
    configs = [read_config(start.path / "config.yaml") for start in (left_start, right_start)]
    keys = sorted(configs[0].keys() | configs[1].keys())
    codes = [_code(start.path / "code") for start in (left_start, right_start)]
    names = sorted(codes[0].keys() | codes[1].keys())
    files = []
    for name in names:
        left, right = (code.get(name) for code in codes)
        if left != right:
            before, after = ((text or "").splitlines() for text in (left, right))
            lines = list(unified_diff(before, after, n=CONTEXT, lineterm=""))[2:]  # no names
            in_sides = {"in_left": left is not None, "in_right": right is not None}
            files.append({"name": name, **in_sides, "lines": lines})
    return {
        "config": [
            {"key": key, "left": configs[0].get(key), "right": configs[1].get(key)}
            for key in keys
            if configs[0].get(key) != configs[1].get(key)
        ],
        "code": files,
        "num_files": len(names),
    }


def read_config(file: Path) -> dict[str, str]:
    """Returns a stored config as flat keys with their values as text; empty if there is none."""
    if not is_file(file):
        return {}
    try:
        return _flat_text(from_yaml(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, RecursionError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(f"{file} cannot be read: {reason}") from error


def keys_of(config: Mapping[str, str]) -> list[dict[str, Any]]:
    """Returns the keys of a stored config, each with its value and whether that is the default."""
    defaults = _default_values()
    return [
        {"key": key, "value": value, "is_default": defaults.get(key) == value}
        for key, value in sorted(config.items())
    ]


@cache
def _default_values() -> Mapping[str, str]:
    defaults = AjetConfig.model_validate({"ajet": {"model": {"path": ""}}})
    return _flat_text(from_yaml(to_yaml(redacted_config(defaults))))


def _flat_text(values: Any) -> dict[str, str]:
    return {name: str(value) for name, value in flatten(values).items()}


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
        raise RecordError(f"{folder} cannot be read: {error.strerror}") from error
