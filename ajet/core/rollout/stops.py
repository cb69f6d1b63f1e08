"""Requests to end an episode while it runs, from a person or a limit, and their results.

    ajet inspect stop RUN EPISODE  ── RUN/stops/EPISODE ──> the run takes it (EPISODE.taken), and
                                                            removes it when the episode has ended
    RUN/logs/stopped.jsonl    {"episode_id": …, "num_calls": 2, "status": "stopped", "reason": …}

Files need no port and no key: whoever may write into the run folder can stop its episodes.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.process.file_lock import is_held, take
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory

EPISODE_ID = re.compile(r"\d{6,}-(train|eval|baseline)-\d{4,}-\d{2,}(-r\d+)?")
TAKEN = ".taken"
BY_A_PERSON = "stopped by a person (ajet inspect stop)"
ANSWER_S = 10.0
"""How long the command waits. The run looks every second as long as episodes run."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends an episode with this status and reason between two calls of the model, after `num_calls`
    of them; None stands for those that are under way or have ended. A resumed run ends the episode
    at the same call again, so it agrees with one that was not interrupted."""

    status: EpisodeStatus
    reason: str
    num_calls: int | None = None


class StopRequests:
    """The run's side: reads the requests in `folder`, and records stopped episodes in `record`."""

    def __init__(self, folder: Path, record: Path) -> None:
        self._folder, self._record = folder, record
        # Requests to an earlier attempt of the run are void.
        for path in folder.iterdir() if folder.is_dir() else ():
            if EPISODE_ID.fullmatch(path.name.partition(".")[0]):
                path.unlink(missing_ok=True)
        self.decided = dict(_read(record))

    def pending(self) -> list[str]:
        """Returns the ids of the episodes that somebody asks to stop."""
        if not self._folder.is_dir():
            return []
        # The command holds a lock on its request while it waits for the answer. One without a lock
        # is of a command that was killed: its episode may not even have begun.
        return sorted(
            path.name
            for path in self._folder.iterdir()
            if EPISODE_ID.fullmatch(path.name) and is_held(path)
        )

    def take(self, episode_id: str) -> None:
        """Confirms to the command that the episode runs, and will end."""
        with suppress(FileNotFoundError):  # the command withdrew it, or it was no command
            (self._folder / episode_id).replace(self._folder / (episode_id + TAKEN))

    def ended(self, attempt: Trajectory, stop: Stop) -> None:
        """Records an attempt that was stopped, and answers the command. An attempt that ended by
        itself before the stop took effect is not recorded."""
        if attempt.status is stop.status and attempt.error == stop.reason:
            num_calls = len(attempt.turns)
            self.decided[attempt.episode_id] = replace(stop, num_calls=num_calls)
            row = {
                "episode_id": attempt.episode_id,
                "num_calls": num_calls,
                "status": str(stop.status),
                "reason": stop.reason,
                "time": time.time(),
            }
            try:
                with self._record.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:
                raise CheckpointError(
                    f"{self._record} cannot be written: {error.strerror}",
                    code=Code.RECORD_UNWRITABLE,
                ) from error
        (self._folder / (attempt.episode_id + TAKEN)).unlink(missing_ok=True)


def _read(record: Path) -> Iterator[tuple[str, Stop]]:
    """Yields the stops of earlier attempts. An unreadable row, which a kill may leave, is left out
    with a warning."""
    if not record.exists():
        return
    for number, line in enumerate(record.read_bytes().splitlines(), 1):
        try:
            row = json.loads(line)
            stop = Stop(EpisodeStatus(row["status"]), str(row["reason"]), int(row["num_calls"]))
            yield str(row["episode_id"]), stop
        except (ValueError, KeyError, TypeError, RecursionError):
            logger.warning(f"{record}: line {number} cannot be read and is left out")


def ask_to_stop(
    folder: Path,
    locks: Iterable[Path],
    episode_id: str,
    *,
    wait_s: float = ANSWER_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Asks for the end of an episode and returns the result as a sentence. Raises `CheckpointError`
    if no process of this machine runs the run, or the episode does not run."""
    run = folder.parent
    if not EPISODE_ID.fullmatch(episode_id):
        raise CheckpointError(
            f"{episode_id!r} is not an episode's id, as 000003-train-0004-02 is; the display names "
            "the one that is waited for",
            code=Code.NOTHING_TO_STOP,
        )
    if not any(map(is_held, locks)):
        raise CheckpointError(
            f"no process on this machine runs {run}: nothing to stop", code=Code.NOTHING_TO_STOP
        )
    request, accepted = folder / episode_id, folder / (episode_id + TAKEN)
    with held_request(request):
        end_s = time.monotonic() + wait_s
        while time.monotonic() < end_s and (request.exists() or accepted.exists()):
            sleep(0.1)
    if accepted.exists():
        return f"{episode_id} is in a call of the model, or does not end yet: it ends after that"
    if request.exists():
        request.unlink(missing_ok=True)
        raise CheckpointError(
            f"{episode_id} does not run now in {run}: the display and logs/run.log name the "
            "episode that is waited for",
            code=Code.NOTHING_TO_STOP,
        )
    return f"{episode_id} is stopped"


@contextmanager
def held_request(request: Path) -> Iterator[None]:
    """Makes the request, which counts as long as this process holds its lock. The file gets its
    name after the lock, so the run sees none without."""
    new = request.with_name(f"{request.name}.{os.getpid()}")
    try:
        request.parent.mkdir(exist_ok=True)
        file = new.open("w", encoding="utf-8")
        take(file)
        new.rename(request)
    except OSError as error:
        raise CheckpointError(
            f"{request} cannot be written: {error.strerror}", code=Code.RECORD_UNWRITABLE
        ) from error
    with file:
        yield
