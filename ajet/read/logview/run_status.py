"""What a run is and how far it has come: its state, start, duration, model, steps and time left.

    RunStatus.of(folder, metrics, config, time.time())
    # RunStatus("running", "2026-03-01T09:30:00", 412.0, 12, 60, 1648.0, "embedded:math")

A run that was killed has recorded no end, as one that runs: the lock of its folder tells which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

from ajet.core.process.file_lock import is_held
from ajet.core.record.run_folder import RunFolder, RunOrigin, is_file
from ajet.core.run.attempt_record import AttemptRecord, End, read_attempts
from ajet.read.logview.metric_series import MetricSeries

State = Literal["running", "finished", "stopped", "failed", "killed", "unknown"]
STATES: Mapping[End | None, State] = {
    "complete": "finished",
    "stopped": "stopped",
    "failed": "failed",
    None: "killed",
}
MAX_PACE_STEPS = 10
"""The number of steps whose mean duration is the pace, like the terminal's (record/progress.py)."""


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
        return cls(
            "running" if runs else _state(folder, attempts),
            begun,
            _seconds(attempts, times, now if runs else None),
            max(times, default=0),
            total,
            _seconds_left(attempts, times, total, now) if runs else None,
            config.get("ajet.model.path"),
        )


def is_running(folder: RunFolder) -> bool:
    """Tells whether a process of this machine writes into the run's folder."""
    return any(map(is_held, folder.locks()))


def _state(folder: RunFolder, attempts: Sequence[AttemptRecord]) -> State:
    if attempts:
        return STATES[attempts[-1].end]
    # Folders of earlier versions, and those of Tinker's clients, record no attempts.
    return "finished" if is_file(folder.summary_json) else "unknown"


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
