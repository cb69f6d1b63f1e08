"""Stores ended episodes, and the answered calls of unfinished ones, for a resumed run, until their
group or step is in a checkpoint.

Both are used again if the weights of the checkpoint, or older ones, sampled them under the same
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

from ajet.core.buffer.codec import decode, decode_completion, encode, encode_completion
from ajet.core.buffer.staleness import version_range
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.rollout.answered import AnsweredCall
from ajet.core.rollout.request import episode_id_of
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.error_text import first_line
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory

_TABLES = """
CREATE TABLE IF NOT EXISTS played (fingerprint TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS finished (
    episode_id TEXT PRIMARY KEY, group_id TEXT NOT NULL, newest INTEGER, sitting TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS finished_of_group ON finished (group_id);
CREATE TABLE IF NOT EXISTS answered (
    episode_id TEXT NOT NULL, request TEXT NOT NULL, group_id TEXT NOT NULL,
    newest INTEGER NOT NULL, sitting TEXT NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (episode_id, request)
);
CREATE INDEX IF NOT EXISTS answered_of_group ON answered (group_id);
"""
_BOTH = ("finished", "answered")

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

    def __init__(self, path: Path, fingerprint: str, *, keeps_calls: bool = True) -> None:
        self._path, self.keeps_calls = path, keeps_calls
        self._finished: dict[str, dict[str, Trajectory]] = {}
        self._answered: dict[str, dict[str, list[AnsweredCall]]] = {}
        self._attempt = ""
        with self._database_errors():
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            # Episodes of another config or other code are of no use.
            if self._db.execute("SELECT fingerprint FROM played").fetchall() != [(fingerprint,)]:
                for table in (*_BOTH, "played"):
                    self._db.execute(f"DELETE FROM {table}")
                self._db.execute("INSERT INTO played VALUES (?)", (fingerprint,))
            if not keeps_calls:
                self._db.execute("DELETE FROM answered")

    @classmethod
    def open(cls, path: Path, config: AjetConfig, files: Iterable[Path]) -> Self:
        """Opens the journal at `path` and removes the episodes of another config or other code;
        `files` are user code. Calls are not kept where an episode must not continue with newer
        weights."""
        ajet = config.to_dict()["ajet"]
        may_continue = config.trinity.partial_rollout == "continue"
        sections = {name: ajet[name] for name in DECIDES_EPISODES}
        return cls(path, fingerprint(sections, files), keeps_calls=may_continue)

    @classmethod
    def resumed(cls, path: Path, config: AjetConfig, files: Iterable[Path], step: int) -> Self:
        """Opens the journal of a run that resumes after `step`."""
        journal = cls.open(path, config, files)
        journal.reopen({"": step})
        return journal

    def reopen(self, newest_of: Mapping[str, int], attempt: str = "") -> int:
        """Begins or continues `attempt`; returns and logs how many stored episodes it can use.
        `newest_of` maps earlier attempts to their newest version that is not lost: episodes of
        newer weights are removed. Attempts have names if explorer and trainer are two processes."""
        self._attempt, self._finished, self._answered = attempt, {}, {}
        with self._database_errors():
            for table in _BOTH:
                names = self._db.execute(f"SELECT DISTINCT sitting FROM {table}").fetchall()
                for (name,) in names:
                    lost = (name, newest_of.get(name, -1))
                    self._db.execute(f"DELETE FROM {table} WHERE sitting = ? AND newest > ?", lost)
            calls = "SELECT group_id, episode_id, request, body FROM answered ORDER BY rowid"
            for group_id, episode_id, request, body in self._db.execute(calls).fetchall():
                group = self._answered.setdefault(group_id, {})
                call = AnsweredCall(request, decode_completion(body))
                group.setdefault(episode_id, []).append(call)
            rows = self._db.execute("SELECT group_id, body FROM finished").fetchall()
            for group_id, body in rows:
                (episode,) = (t for group in decode(body) for t in group.trajectories)
                self._finished.setdefault(group_id, {})[_planned_id(episode)] = episode
        if rows:
            logger.info(f"{len(rows)} episodes that an earlier attempt finished are not run again")
        begun = [calls for group in self._answered.values() for calls in group.values()]
        if begun:
            num_calls = sum(map(len, begun))
            logger.info(f"{len(begun)} unfinished episodes continue after {num_calls} stored calls")
        return len(rows)

    def put(self, trajectory: Trajectory) -> None:
        """Stores an ended episode, unless it failed. One that was aborted has not ended."""
        if trajectory.status is EpisodeStatus.ABORTED:
            return
        name, group_id = _planned_id(trajectory), trajectory.group_id
        if trajectory.status in (EpisodeStatus.OK, EpisodeStatus.TRUNCATED):
            single = Group(group_id, (trajectory,), None)
            newest = (version_range(single) or (None, None))[1]
            row = (name, group_id, newest, self._attempt, encode([single]))
            with self._database_errors():
                self._db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?, ?, ?)", row)
        with self._database_errors():
            self._db.execute("DELETE FROM answered WHERE episode_id = ?", (name,))

    def put_call(self, plan: WorkflowTask, call: AnsweredCall) -> None:
        """Stores a call that was answered in an episode that has not ended. Where that fails, a
        line says that no more are stored; the next `put` probably ends the run."""
        if not self.keeps_calls:
            return
        newest = max((version for _, version in call.completion.versions), default=-1)
        newest = max(newest, call.completion.policy_version)
        body = encode_completion(call.completion)
        row = (plan.episode_id, call.request, plan.group_id, newest, self._attempt, body)
        try:
            with self._database_errors():
                self._db.execute("INSERT OR REPLACE INTO answered VALUES (?, ?, ?, ?, ?, ?)", row)
        except CheckpointError as error:
            self.keeps_calls = False
            logger.warning(f"calls of unfinished episodes are no longer stored: {error}")

    def answered(self, group_id: str) -> dict[str, list[AnsweredCall]]:
        """Returns the answered calls of this group's episodes that an earlier attempt did not
        finish, by their planned ids. As with `take`, a second call returns none."""
        if group_id not in self._answered:
            with self._database_errors():
                self._db.execute("DELETE FROM answered WHERE group_id = ?", (group_id,))
        return self._answered.pop(group_id, {})

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
        both = "SELECT group_id FROM finished UNION SELECT group_id FROM answered"
        with self._database_errors():
            ids = [row[0] for row in self._db.execute(both)]
        return [group_id for group_id in ids if not is_open(group_id)]

    def remove(self, group_ids: Iterable[str]) -> None:
        """Removes the episodes of groups that are in a checkpoint which has been written."""
        with self._database_errors():
            ids = [(group_id,) for group_id in group_ids]
            for table in _BOTH:
                self._db.executemany(f"DELETE FROM {table} WHERE group_id = ?", ids)

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
