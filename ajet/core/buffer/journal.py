"""Episodes that have ended while their group, or their step, is not safe in a checkpoint yet: a run
that goes on has them, and plays only the others again.

    GroupRunner ── each episode as it ends ──> Journal (finished.sqlite)
            ^                                                        │
            └── those of the same plan, in the next attempt <────────┘ reopen(steps)

What counts is what the checkpoint's own weights, or older ones, have sampled, under the same config
and code: the rest is dropped by `reopen`. An episode that failed is not kept: it is played again.

An attempt of the trainer has a name where the explorer outlives it, or the other way round.

Not covered: whole groups of an asynchronous run (buffer.py); backbone debug, whose bits depend on
which episodes are played together.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from ajet.core.buffer.codec import decode, encode
from ajet.core.buffer.staleness import versions
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError
from ajet.core.rollout.request import episode_id_of
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory

_TABLES = """
CREATE TABLE IF NOT EXISTS played (fingerprint TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS finished (
    episode_id TEXT PRIMARY KEY, group_id TEXT NOT NULL, newest INTEGER, sitting TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS finished_of_group ON finished (group_id);
"""


DECIDES_EPISODES = ("model", "seed", "data", "task_reader", "task_judge", "environment", "rollout")
"""Sections of the config: an episode that was run under others is not that of this run."""


def fingerprint(sections: dict[str, Any], files: Iterable[Path]) -> str:
    """Of what decides how an episode goes: parts of the config, and the user's code."""
    digest = hashlib.sha256(json.dumps(sections, sort_keys=True, default=str).encode())
    for path in sorted(set(files)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Journal:
    """One process writes. A commit survives the end of the process, not that of the machine."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._left: dict[str, dict[str, Trajectory]] = {}
        self._attempt = ""
        with self._usable():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._play_under(fingerprint)

    @classmethod
    def open(cls, path: Path, config: AjetConfig, files: Iterable[Path]) -> Self:
        """The journal of episodes that were run under this config and these files of the user's
        code; it forgets those of others."""
        ajet = config.to_dict()["ajet"]
        return cls(path, fingerprint({name: ajet[name] for name in DECIDES_EPISODES}, files))

    def reopen(self, newest_of: Mapping[str, int], attempt: str = "") -> int:
        """`attempt` begins, or goes on; says how many episodes there are. `newest_of` has, for each
        attempt that may have left some, the last of its versions that the run still goes on from:
        those of weights that were lost are dropped."""
        self._attempt, self._left = attempt, {}
        with self._usable():
            for (name,) in self._db.execute("SELECT DISTINCT sitting FROM finished").fetchall():
                kept = (name, newest_of.get(name, -1))
                self._db.execute("DELETE FROM finished WHERE sitting = ? AND newest > ?", kept)
            rows = self._db.execute("SELECT group_id, body FROM finished").fetchall()
        for group_id, body in rows:
            (alone,) = decode(body)
            (episode,) = alone.trajectories
            self._left.setdefault(group_id, {})[_planned_as(episode)] = episode
        return len(rows)

    def put(self, trajectory: Trajectory) -> None:
        """It has ended."""
        if trajectory.status not in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED):
            return
        group_id = trajectory.group_id
        alone = Group(group_id, (trajectory,), None)
        newest = (versions(alone) or (None, None))[1]
        row = (_planned_as(trajectory), group_id, newest, self._attempt, encode([alone]))
        with self._usable():
            self._db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?)", row)

    def take(self, group_id: str) -> dict[str, Trajectory]:
        """What the last attempt has left of this group, by the ids that its members were planned
        with. Asked again, nothing: a group that begins anew in one attempt is played anew."""
        if group_id not in self._left:
            with self._usable():
                self._db.execute("DELETE FROM finished WHERE group_id = ?", (group_id,))
        return self._left.pop(group_id, {})

    def keep_only(self, is_open: Callable[[str], bool]) -> None:
        """There is a checkpoint, and these groups are not in it."""
        with self._usable():
            ids = {row[0] for row in self._db.execute("SELECT DISTINCT group_id FROM finished")}
            over = [(group_id,) for group_id in ids if not is_open(group_id)]
            self._db.executemany("DELETE FROM finished WHERE group_id = ?", over)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """A fault of the file, or of its disk, is one line."""
        try:
            yield
        except sqlite3.Error as error:
            raise CheckpointError(
                f"{self._path} cannot be used: {error}; mend that, or move it away, and episodes "
                "of unfinished groups are played again"
            ) from error

    def _play_under(self, fingerprint: str) -> None:
        if self._db.execute("SELECT fingerprint FROM played").fetchall() != [(fingerprint,)]:
            self._db.execute("DELETE FROM finished")
            self._db.execute("DELETE FROM played")
            self._db.execute("INSERT INTO played VALUES (?)", (fingerprint,))


def _planned_as(trajectory: Trajectory) -> str:
    return episode_id_of(trajectory.group_id, trajectory.workflow_task.rollout_index)
