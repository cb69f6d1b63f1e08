"""A run's metrics as series over its steps; and what it is and how far it has come: its state,
start, duration, model, steps and time left.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from ajet.core.errors import RecordError
from ajet.core.process.file_lock import is_held
from ajet.core.record.run_folder import RunFolder, RunOrigin, is_file, read_bytes_of
from ajet.core.run.attempt_record import AttemptRecord, End, read_attempts

Rows = dict[int, dict[str, float]]
Times = dict[int, float]
State = Literal["running", "finished", "stopped", "failed", "killed", "unknown"]
STATES: Mapping[End | None, State] = {
    "complete": "finished",
    "stopped": "stopped",
    "failed": "failed",
    None: "killed",
}
MAX_PACE_STEPS = 10
"""The number of steps whose mean duration is the pace, like the terminal's (record/progress.py)."""


class MetricSeries:
    """A run's metrics; the file is read again when it has changed. Rows of one step are merged: a
    validation is logged at the step after which it ran. Unreadable lines, such as the last one of a
    killed run, are skipped."""

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


@dataclass(frozen=True, slots=True)
class RunStatus:
    """Holds what is known of a run now. `begun` is local time (ISO 8601); `seconds` are those of
    all its starts together; `seconds_left` is None unless it runs."""

    state: State
    begun: str | None
    seconds: float | None
    step: int
    total_steps: int | None
    seconds_left: float | None
    model: str | None

    @classmethod
    def of(
        cls, folder: RunFolder, metrics: MetricSeries, config: Mapping[str, str], now: float
    ) -> RunStatus:
        """Reads the status at the time `now`, in seconds since 1970."""
        attempts, times = read_attempts(folder), metrics.times()
        runs = is_running(folder)
        total = attempts[-1].total_steps if attempts else None
        planned = config.get("ajet.trainer_common.total_training_steps", "")
        total = int(planned) if total is None and planned.isdecimal() else total
        begun = attempts[0].begun if attempts else None
        if begun is None and is_file(folder.origin_json):
            begun = RunOrigin.read(folder.origin_json).begun
        # Folders of earlier versions, and those of Tinker's clients, record no attempts.
        state: State = "finished" if is_file(folder.summary_json) else "unknown"
        if attempts:
            state = STATES[attempts[-1].end]
        return cls(
            "running" if runs else state,
            begun,
            _seconds(attempts, times, now if runs else None),
            max(times, default=0),
            total,
            _seconds_left(attempts, times, total, now) if runs else None,
            config.get("ajet.model.path"),
        )


def is_running(folder: RunFolder) -> bool:
    """Tells whether a process of this machine writes into the run's folder: a run that was killed
    has recorded no end either, but does not hold its lock."""
    return any(map(is_held, folder.locks()))


def _seconds(
    attempts: Sequence[AttemptRecord], times: Mapping[int, float], now: float | None
) -> float | None:
    """Returns the time of all attempts. One that was killed ends with its last step; the newest
    ends `now` if it runs."""
    if not attempts:
        return None
    total, following = 0.0, now
    for attempt in reversed(attempts):
        begun = _timestamp(attempt.begun)
        if attempt.ended is not None:
            end = _timestamp(attempt.ended)
        elif following is not None and attempt is attempts[-1]:
            end = following
        else:
            before = [at for at in times.values() if following is None or at < following]
            end = max(before, default=begun)
        total += max(end - begun, 0.0)
        following = begun
    return total


def _seconds_left(
    attempts: Sequence[AttemptRecord], times: Mapping[int, float], total: int | None, now: float
) -> float | None:
    """Returns the time until the last step at the pace of the newest start's last steps."""
    first, begun = 0, 0.0
    if attempts:
        first, begun = attempts[-1].first_step, _timestamp(attempts[-1].begun)
    # The step before the first one may have been written by an earlier start.
    ends = [max(at, begun) for step, at in sorted(times.items()) if step >= first]
    durations = [after - before for before, after in pairwise(ends)][-MAX_PACE_STEPS:]
    if total is None or not durations:
        return None
    pace = sum(durations) / len(durations)
    spent = min(now - ends[-1], pace)
    return max(0.0, pace * (total - max(times)) - spent)


def _timestamp(local_time: str) -> float:
    return datetime.fromisoformat(local_time).timestamp()
