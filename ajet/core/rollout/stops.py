"""Episodes that a person, or a bound, ends while they run: the requests, and what came of them.

    ajet stop RUN EPISODE  ── RUN/stops/EPISODE ──> the run takes it (EPISODE.taken), and removes it
                                                    when the episode has ended
    RUN/logs/stopped.jsonl    {"episode_id": …, "num_calls": 2, "status": "stopped", "reason": …}

A stop takes effect between two calls of the model, after `num_calls` of them: so the other episodes
see an episode that leaves there, whenever somebody asked. A run that resumes from before that ends
the episode at the same call again, and so agrees with one that was not interrupted.

Who asks holds a lock on the request while it waits for the answer: a request without it is of a
command that was killed, and stops nothing. No clock is read, so none that jumps matters.

Files, and no socket: they work on every disk that the run folder is on, need no port and no key,
and only who may write into the run folder can stop anything. Not covered: who asks (cli/stop.py).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from ajet.core.error_codes import Code
from ajet.core.errors import CheckpointError
from ajet.core.file_lock import is_held
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory

EPISODE_ID = re.compile(r"\d{6,}-(train|eval|baseline)-\d{4,}-\d{2,}(-r\d+)?")
TAKEN = ".taken"
BY_A_PERSON = "stopped by a person (ajet stop)"


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends an episode with this status and reason, after `num_calls` calls of the model; None means
    as soon as no call is under way."""

    status: EpisodeStatus
    reason: str
    num_calls: int | None = None


class StopRequests:
    """Reads the requests in one run folder and writes down which were met, for the run itself."""

    def __init__(self, folder: Path, record: Path) -> None:
        """`folder` gets the requests. `record` has the episodes that were stopped."""
        self._folder, self._record = folder, record
        self._clear()
        self.decided = dict(_read(record))

    def pending(self) -> list[str]:
        """Returns the ids of the episodes that somebody asks to stop, and waits for."""
        if not self._folder.is_dir():
            return []
        names = sorted(path.name for path in self._folder.iterdir())
        return [name for name in names if EPISODE_ID.fullmatch(name) and self._is_asked(name)]

    def take(self, episode_id: str) -> None:
        """Tells the asker that the episode runs, and will end."""
        with suppress(FileNotFoundError):  # taken back by who asked, or nobody asked
            (self._folder / episode_id).replace(self._folder / (episode_id + TAKEN))

    def ended(self, attempt: Trajectory, stop: Stop) -> None:
        """Records an attempt that was stopped, and tells the asker. One that ended by itself before
        the stop took effect is not recorded."""
        if attempt.status is stop.status and attempt.error == stop.reason:
            num_calls = len(attempt.turns)
            self.decided[attempt.episode_id] = replace(stop, num_calls=num_calls)
            self._append(
                {
                    "episode_id": attempt.episode_id,
                    "num_calls": num_calls,
                    "status": str(stop.status),
                    "reason": stop.reason,
                    "time": time.time(),
                }
            )
        (self._folder / (attempt.episode_id + TAKEN)).unlink(missing_ok=True)

    def _append(self, row: dict[str, object]) -> None:
        try:
            with self._record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise CheckpointError(
                f"{self._record} cannot be written: {error.strerror}", code=Code.RECORD_UNWRITABLE
            ) from error

    def _is_asked(self, name: str) -> bool:
        """Returns False for what a command left that was killed: the episode may not even have
        begun."""
        return is_held(self._folder / name)

    def _clear(self) -> None:
        """Removes what was asked of an earlier attempt of the run."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if EPISODE_ID.fullmatch(path.name.partition(".")[0]):
                path.unlink(missing_ok=True)


def _read(record: Path) -> Iterator[tuple[str, Stop]]:
    """Yields the stops of earlier attempts; a row that cannot be read, as a kill may leave one, is
    left out and said."""
    if not record.exists():
        return
    for number, line in enumerate(record.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            stop = Stop(EpisodeStatus(row["status"]), str(row["reason"]), int(row["num_calls"]))
            yield str(row["episode_id"]), stop
        except (ValueError, KeyError, TypeError, RecursionError):
            logger.warning(f"{record}: line {number} cannot be read and is left out")
