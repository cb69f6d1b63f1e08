"""Stores each episode that has ended until its group, or its step, is safe in a checkpoint, so that
a run that resumes runs only the other episodes again.

    GroupRunner ── each episode as it ends ──> Journal (finished.sqlite)
            ^                                                        │
            └── those of the same plan, in the next attempt <────────┘ reopen(versions)

An episode is used again if the checkpoint's own weights, or older ones, sampled it under the same
config and code; `reopen` removes the others. An episode that failed is not stored: it runs again.

The trainer's attempts are told apart by name where explorer and trainer are separate processes.

Not covered: whole groups of an asynchronous run (buffer.py); backbone debug, whose results depend
bit for bit on which episodes run together, unless clients own the episodes.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from loguru import logger

from ajet.core.buffer.codec import decode, encode
from ajet.core.buffer.staleness import version_range
from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.error_text import first_line
from ajet.core.errors import CheckpointError, DataError
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
"""Sections of the config that determine an episode: one that ran under others is not used again."""


def fingerprint(sections: dict[str, Any], files: Iterable[Path]) -> str:
    """Returns a hash of what determines an episode: sections of the config and the user's code."""
    digest = hashlib.sha256(json.dumps(sections, sort_keys=True, default=str).encode())
    for path in sorted(set(files)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Journal:
    """The stored episodes. One process writes; what is committed survives the end of the process,
    but not a crash of the machine."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._finished: dict[str, dict[str, Trajectory]] = {}
        self._attempt = ""
        with self._database_errors():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            self._require_fingerprint(fingerprint)

    @classmethod
    def open(cls, path: Path, config: AjetConfig, files: Iterable[Path]) -> Self:
        """Opens the journal at `path` and removes the episodes of another config or other code.
        `files` are those of the user's code."""
        ajet = config.to_dict()["ajet"]
        return cls(path, fingerprint({name: ajet[name] for name in DECIDES_EPISODES}, files))

    @classmethod
    def resumed(cls, path: Path, config: AjetConfig, files: Iterable[Path], step: int) -> Self:
        """Opens the journal of a run that goes on behind `step`, and logs how many episodes are not
        run again."""
        journal = cls.open(path, config, files)
        if num_finished := journal.reopen({"": step}):
            logger.info(
                f"{num_finished} episodes that an earlier attempt finished are not run again"
            )
        return journal

    def reopen(self, newest_of: Mapping[str, int], attempt: str = "") -> int:
        """Begins or continues `attempt`; returns how many stored episodes it can use. `newest_of`
        has, for each earlier attempt, its newest version that the run resumes from: episodes of
        newer weights, which are lost, are removed."""
        self._attempt, self._finished = attempt, {}
        with self._database_errors():
            for (name,) in self._db.execute("SELECT DISTINCT sitting FROM finished").fetchall():
                lost = (name, newest_of.get(name, -1))
                self._db.execute("DELETE FROM finished WHERE sitting = ? AND newest > ?", lost)
            rows = self._db.execute("SELECT group_id, body FROM finished").fetchall()
            for group_id, body in rows:
                (episode,) = (t for group in decode(body) for t in group.trajectories)
                self._finished.setdefault(group_id, {})[_planned_id(episode)] = episode
        return len(rows)

    def put(self, trajectory: Trajectory) -> None:
        """Stores an episode that has ended, unless it has failed."""
        if trajectory.status not in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED):
            return
        group_id = trajectory.group_id
        single = Group(group_id, (trajectory,), None)
        newest = (version_range(single) or (None, None))[1]
        row = (_planned_id(trajectory), group_id, newest, self._attempt, encode([single]))
        with self._database_errors():
            self._db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?)", row)

    def take(self, group_id: str) -> dict[str, Trajectory]:
        """Returns the episodes of this group that an earlier attempt finished, by the ids they were
        planned with. A second call returns none: a group that begins again within one attempt runs
        all its episodes again."""
        if group_id not in self._finished:
            with self._database_errors():
                self._db.execute("DELETE FROM finished WHERE group_id = ?", (group_id,))
        return self._finished.pop(group_id, {})

    def keep_only(self, is_open: Callable[[str], bool]) -> None:
        """Removes the episodes of all groups but the open ones, which are not in the checkpoint
        that was just written."""
        with self._database_errors():
            ids = {row[0] for row in self._db.execute("SELECT DISTINCT group_id FROM finished")}
            saved = [(group_id,) for group_id in ids if not is_open(group_id)]
            self._db.executemany("DELETE FROM finished WHERE group_id = ?", saved)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _database_errors(self) -> Iterator[None]:
        """Turns an error of the file, of what it holds, or of its disk into a CheckpointError of
        one line."""
        try:
            yield
        except (sqlite3.Error, DataError, ValueError) as error:
            raise CheckpointError(
                f"{self._path} cannot be used: {first_line(str(error))}; mend that, or move it "
                "away, and episodes of unfinished groups are played again",
                code=Code.BUFFER_UNUSABLE,
            ) from error

    def _require_fingerprint(self, fingerprint: str) -> None:
        """Removes all episodes if they were run under another fingerprint."""
        if self._db.execute("SELECT fingerprint FROM played").fetchall() != [(fingerprint,)]:
            self._db.execute("DELETE FROM finished")
            self._db.execute("DELETE FROM played")
            self._db.execute("INSERT INTO played VALUES (?)", (fingerprint,))


def _planned_id(trajectory: Trajectory) -> str:
    return episode_id_of(trajectory.group_id, trajectory.workflow_task.rollout_index)
