"""Reads the metrics of a run as series over its steps.

    series = MetricSeries(folder.metrics_jsonl)
    series.data(["reward/mean"])   # {"steps": [0, 1], "series": {"reward/mean": [None, 0.31]}, …}

Rows of one step are merged: a validation is logged at the step after which it ran. Unreadable
lines, such as the last one of a killed run, are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ajet.core.errors import RecordError
from ajet.core.record.run_folder import read_bytes_of

Rows = dict[int, dict[str, float]]
Times = dict[int, float]


class MetricSeries:
    """A run's metrics; the file is read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None
        self._read: tuple[Rows, Times] = ({}, {})

    def rows(self) -> Rows:
        """Returns the numbers by step, in the order of steps."""
        return self._content()[0]

    def times(self) -> Times:
        """Returns when each step was written, in seconds since 1970."""
        return self._content()[1]

    def _content(self) -> tuple[Rows, Times]:
        try:
            stat = self._path.stat()
            # The page asks often, and the file of a long run is large.
            seen = (stat.st_mtime_ns, stat.st_size)
            if self._seen != seen:
                self._read = _parsed(read_bytes_of(self._path))
                self._seen = seen
        except FileNotFoundError:  # the run is still starting
            return {}, {}
        except OSError as error:
            raise RecordError(f"{self._path} cannot be read: {error.strerror}") from error
        return self._read

    def data(self, selected: Iterable[str]) -> dict[str, Any]:
        """Returns the steps, the selected series, with None where a step has no number, and all
        names that exist. Unknown names are left out."""
        rows = self.rows()
        names = sorted({name for row in rows.values() for name in row})
        series = {
            name: [_short(row.get(name)) for row in rows.values()]
            for name in selected
            if name in names
        }
        return {"steps": list(rows), "series": series, "names": names}

    def ends(self, name: str) -> tuple[float | None, float | None]:
        """Returns the first and the last number of a series: None for both if it is empty, and None
        for the last if it has only one."""
        numbers = [row[name] for row in self.rows().values() if name in row]
        return (numbers[0] if numbers else None, numbers[-1] if len(numbers) > 1 else None)


def _parsed(content: bytes) -> tuple[Rows, Times]:
    rows: Rows = {}
    times: Times = {}
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and type(step := row.get("step")) is int:
            numbers = {
                name: value
                for name, value in row.items()
                if name not in ("step", "time") and type(value) in (int, float)
            }
            rows.setdefault(step, {}).update(numbers)
            if isinstance(at := row.get("time"), int | float):
                times[step] = at
    return dict(sorted(rows.items())), times


def _short(number: float | None) -> float | None:
    """Rounds to six digits: a curve shows no more."""
    return None if number is None else float(f"{number:.6g}")
