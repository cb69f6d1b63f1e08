"""Stores the warnings of a run in `logs/warnings.jsonl`, each name once a run.

    {"step": 12, "name": "truncation", "text": "31 of 256 episodes were cut …",
     "values": {"share": 0.121}, "time": 1790000000.0}

A resumed run cuts off the rows after its checkpoint, so those warnings may come again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from loguru import logger

from ajet.core.errors import RecordError
from ajet.core.record.atomic_file import write_text_atomically, writing
from ajet.core.record.run_folder import read_bytes_of
from ajet.core.record.warning_names import WarningName
from ajet.core.text.redaction import redact


@dataclass(frozen=True, slots=True)
class RunWarning:
    """Holds a warning of one step: its name, its text, and the numbers behind it."""

    step: int
    name: WarningName
    text: str
    values: Mapping[str, float] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


class WarningLog:
    """Holds the warnings of a run so far; without a path only in memory."""

    def __init__(self, path: Path | None = None, first_step: int = 0) -> None:
        """Opens the file and cuts off the rows from `first_step` on."""
        self.warnings: list[RunWarning] = []
        self._file: IO[str] | None = None
        if path is None:
            return
        self.warnings = [warning for warning in read_warnings(path) if warning.step < first_step]
        write_text_atomically(path, "".join(map(_line, self.warnings)))
        with writing(path):
            self._file = path.open("a", encoding="utf-8")

    def add(self, warning: RunWarning) -> bool:
        """Stores the warning, unless one of its name is there; returns whether it is new."""
        if any(earlier.name == warning.name for earlier in self.warnings):
            return False
        self.warnings.append(warning)
        if self._file is not None:
            with writing(self._file.name):
                self._file.write(_line(warning))
                self._file.flush()
        return True

    def close(self) -> None:
        """Closes the file. Warnings are flushed already, unless the disk is full."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()


def read_warnings(path: Path) -> list[RunWarning]:
    """Returns the warnings in a run folder's file. An unreadable row, which a kill may leave, is
    left out with a warning."""
    rows = warning_rows(path)
    for number, row in enumerate(rows, 1):
        if row is None:
            logger.warning(f"{path}: line {number} cannot be read and is left out")
    return [row for row in rows if row is not None]


def warning_rows(path: Path) -> list[RunWarning | None]:
    """Returns the rows of a run folder's file, with None for unreadable ones."""
    try:
        return [_warning(line) for line in read_bytes_of(path).splitlines()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error


def _warning(line: bytes) -> RunWarning | None:
    try:
        warning = RunWarning(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    fits = isinstance(warning.step, int) and isinstance(warning.name, str)
    return warning if fits and isinstance(warning.text, str) else None


def _line(warning: RunWarning) -> str:
    return json.dumps(asdict(warning)) + "\n"


def shown_text(text: str) -> str:
    """Returns the text without secrets, control characters and lone surrogates, which an episode's
    error may contain."""
    return redact("".join(char if char.isprintable() else "\ufffd" for char in text))
