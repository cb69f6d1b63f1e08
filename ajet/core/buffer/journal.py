"""Stores ended episodes for a resumed run, until their group or step is in a checkpoint.

An episode is used again if the weights of the checkpoint, or older ones, sampled it under the same
config and code. Failed episodes are not stored. Backbone debug has no journal unless clients run
the episodes: its bits depend on which episodes run together.
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
from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.rollout.request import episode_id_of
from ajet.core.text.error_text import first_line
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
"""Sections of the config that determine an episode."""


def fingerprint(sections: dict[str, Any], files: Iterable[Path]) -> str:
    """Returns a hash of what determines an episode: sections of the config, and user code."""
    digest = hashlib.sha256(json.dumps(sections, sort_keys=True, default=str).encode())
    for path in sorted(set(files)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Journal:
    """The stored episodes. One process writes. They survive the end of the process, but perhaps not
    a crash of the machine (`synchronous=NORMAL`)."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._finished: dict[str, dict[str, Trajectory]] = {}
        self._attempt = ""
        with self._database_errors():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            # Episodes of another config or other code are of no use.
            if self._db.execute("SELECT fingerprint FROM played").fetchall() != [(fingerprint,)]:
                self._db.execute("DELETE FROM finished")
                self._db.execute("DELETE FROM played")
                self._db.execute("INSERT INTO played VALUES (?)", (fingerprint,))

    @classmethod
    def open(cls, path: Path, config: AjetConfig, files: Iterable[Path]) -> Self:
        """Opens the journal at `path` and removes the episodes of another config or other code;
        `files` are user code."""
        ajet = config.to_dict()["ajet"]
        return cls(path, fingerprint({name: ajet[name] for name in DECIDES_EPISODES}, files))

    @classmethod
    def resumed(cls, path: Path, config: AjetConfig, files: Iterable[Path], step: int) -> Self:
        """Opens the journal of a run that resumes after `step`, and logs how many episodes do not
        run again."""
        journal = cls.open(path, config, files)
        if num_finished := journal.reopen({"": step}):
            logger.info(
                f"{num_finished} episodes that an earlier attempt finished are not run again"
            )
        return journal

    def reopen(self, newest_of: Mapping[str, int], attempt: str = "") -> int:
        """Begins or continues `attempt`, and returns how many stored episodes it can use.
        `newest_of` maps earlier attempts to their newest version that is not lost: episodes of
        newer weights are removed. Attempts have names if explorer and trainer are two processes."""
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
        """Stores an ended episode, unless it failed."""
        if trajectory.status not in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED):
            return
        group_id = trajectory.group_id
        single = Group(group_id, (trajectory,), None)
        newest = (version_range(single) or (None, None))[1]
        row = (_planned_id(trajectory), group_id, newest, self._attempt, encode([single]))
        with self._database_errors():
            self._db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?)", row)

    def take(self, group_id: str) -> dict[str, Trajectory]:
        """Returns the episodes of this group that an earlier attempt finished, by their planned
        ids. A second call returns none: a group that begins again within one attempt, with newer
        weights, runs all its episodes again."""
        if group_id not in self._finished:
            with self._database_errors():
                self._db.execute("DELETE FROM finished WHERE group_id = ?", (group_id,))
        return self._finished.pop(group_id, {})

    def groups_except(self, is_open: Callable[[str], bool]) -> list[str]:
        """Returns the groups that a checkpoint of this moment holds: all but the open ones."""
        with self._database_errors():
            ids = [row[0] for row in self._db.execute("SELECT DISTINCT group_id FROM finished")]
        return [group_id for group_id in ids if not is_open(group_id)]

    def remove(self, group_ids: Iterable[str]) -> None:
        """Removes the episodes of groups that are in a checkpoint which has been written."""
        with self._database_errors():
            ids = [(group_id,) for group_id in group_ids]
            self._db.executemany("DELETE FROM finished WHERE group_id = ?", ids)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _database_errors(self) -> Iterator[None]:
        """Turns errors of the file, its content or its disk into CheckpointErrors of one line."""
        try:
            yield
        except (sqlite3.Error, DataError, ValueError) as error:
            raise CheckpointError(
                f"{self._path} cannot be used: {first_line(str(error))}; fix that, or move it "
                "away, and episodes of unfinished groups run again",
                code=Code.BUFFER_UNUSABLE,
            ) from error


def _planned_id(trajectory: Trajectory) -> str:
    return episode_id_of(trajectory.group_id, trajectory.workflow_task.rollout_index)
