"""The side of `ajet inspect stop`: asks a run to end an episode, and waits for the answer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.process.file_lock import is_held, take
from ajet.core.rollout.stops import EPISODE_ID, TAKEN

ANSWER_S = 10.0
"""The run looks every second as long as episodes run."""


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
