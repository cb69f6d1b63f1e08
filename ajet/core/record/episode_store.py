"""Writes every episode to `episodes.sqlite`: one transaction a step, nothing twice.

A killed run leaves only complete steps. Writing a step again replaces its episodes. One process
writes, one thread at a time. episode_schema.py describes the tables.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.model.attention.trie import common_length
from ajet.core.record.episode_schema import (
    EPISODE_COLUMNS,
    TRAINED_COLUMNS,
    TURN_COLUMNS,
    database_problem,
    ids_blob,
    open_for_writing,
)
from ajet.core.task.task import Task
from ajet.core.text.plain_value import plain_text, plain_value
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.trained_tokens import NUMBERS, TrainedTokens, TurnNumbers
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.turn import Turn

Advantages = Mapping[str, Sequence[NDArray[np.float32]]]
Masks = dict[tuple[str, int], NDArray[np.uint8]]

_INSERT_EPISODE = (
    f"INSERT OR REPLACE INTO episodes ({', '.join(EPISODE_COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(EPISODE_COLUMNS))})"
)
_INSERT_TURN = (
    f"INSERT INTO turns ({', '.join(TURN_COLUMNS)}) VALUES ({', '.join('?' * len(TURN_COLUMNS))})"
)
_INSERT_TRAINED = (
    f"INSERT INTO trained_tokens ({', '.join(TRAINED_COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(TRAINED_COLUMNS))})"
)
MAX_QUERY_LENGTH = 100_000
"""The column `query` is for lists and searches; the table of tasks has the whole text."""
_to_json = json.JSONEncoder(separators=(",", ":")).encode


class EpisodeStore:
    """Writes `episodes.sqlite`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = open_for_writing(path)
        self._row_ids: dict[tuple[str, str], int] = {}

    def write(
        self,
        step: int,
        groups: Sequence[Group],
        advantages: Advantages | None = None,
        samples: Iterable[TrainingSample] = (),
        tokens: TrainedTokens | None = None,
    ) -> None:
        """Stores all episodes of a step; an evaluation has only groups."""
        masks = loss_masks(samples)
        # An episode's failed attempts are rows like the others, with ids that end in -r1, -r2, …
        self._row_ids.clear()  # a transaction that was rolled back may have removed a row
        recorded = [(a, g.task) for g in groups for t in g.trajectories for a in t.attempts]
        trajectories = [trajectory for trajectory, _ in recorded]
        per_turn = advantages or {}
        with self._transaction() as connection:
            # INSERT OR REPLACE replaces the row of an episode, but not those of its turns: another
            # attempt at the step may have fewer.
            for table in ("turns", "trained_tokens"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE episode_id = ?",
                    [(t.episode_id,) for t in trajectories],
                )
            connection.executemany(
                _INSERT_EPISODE,
                [
                    _episode_row(step, t, per_turn.get(t.episode_id, ()), self._task_row(task))
                    for t, task in recorded
                ],
            )
            connection.executemany(
                _INSERT_TURN,
                [
                    row
                    for t in trajectories
                    for row in self._turn_rows(t, per_turn.get(t.episode_id, ()), masks)
                ],
            )
            if tokens is not None:
                connection.executemany(
                    _INSERT_TRAINED, [_trained_row(*turn) for turn in tokens.turns()]
                )

    def truncate_from(self, step: int) -> int:
        """Deletes the episodes of `step` and later, and returns their number."""
        with self._transaction() as connection:
            for table in ("turns", "trained_tokens"):
                connection.execute(
                    f"DELETE FROM {table} WHERE episode_id IN "
                    "(SELECT episode_id FROM episodes WHERE step >= ?)",
                    (step,),
                )
            return connection.execute("DELETE FROM episodes WHERE step >= ?", (step,)).rowcount

    def close(self) -> None:
        """Merges the write-ahead log into the file and closes it."""
        self._connection.close()

    def __enter__(self) -> EpisodeStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection, self.path)

    def _turn_rows(
        self, trajectory: Trajectory, advantages: Sequence[NDArray[np.float32]], masks: Masks
    ) -> list[tuple[Any, ...]]:
        rows = []
        last_of_agent: dict[tuple[str, str], int] = {}
        for index, turn in enumerate(trajectory.turns):
            agent = (turn.agent_name, turn.target_tag)
            # Calls of one agent mostly continue each other, those of several agents alternate.
            base = last_of_agent.get(agent)
            rows.append(
                (
                    trajectory.episode_id,
                    index,
                    *agent,
                    turn.trainable,
                    base,
                    *_new_text(turn, None if base is None else trajectory.turns[base]),
                    self._row_id("tools", "tools", _to_json(turn.tools)) if turn.tools else None,
                    _to_json(turn.reply),
                    *_new_prompt(turn, None if base is None else trajectory.turns[base]),
                    _blob(turn.completion.token_ids, "<i4"),
                    _blob(turn.completion.logprobs, "<f4"),
                    _blob_or_none(advantages[index], "<f4") if index < len(advantages) else None,
                    _blob_or_none(masks.get((trajectory.episode_id, index)), "u1"),
                    turn.completion.finish_reason,
                    turn.completion.policy_version,
                    turn.reward,
                    turn.state_key,
                    turn.started_s,
                    turn.ended_s,
                    _to_json(turn.notes.as_json()),
                )
            )
            last_of_agent[agent] = index
        return rows

    def _task_row(self, task: Task | None) -> int | None:
        text = None if task is None else _exact_json(task)
        return None if text is None else self._row_id("tasks", "task", text)

    def _row_id(self, table: str, column: str, text: str) -> int:
        """Returns the id of the row of `table` that holds this text; the row is added if it does
        not exist."""
        if (table, text) not in self._row_ids:
            insert = f"INSERT OR IGNORE INTO {table} ({column}) VALUES (?)"
            self._connection.execute(insert, (text,))
            row = self._connection.execute(f"SELECT id FROM {table} WHERE {column} = ?", (text,))
            self._row_ids[table, text] = row.fetchone()[0]
        return self._row_ids[table, text]


class _Transaction:
    """Commits all writes of a block or none. A full disk becomes an error of one line."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def __enter__(self) -> sqlite3.Connection:
        try:
            # Takes the write lock now: a deferred transaction could fail halfway.
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise CheckpointError(
                database_problem(self._path, error), code=Code.RECORD_UNWRITABLE
            ) from error
        return self._connection

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._connection.execute("COMMIT")
        except sqlite3.Error as failed:
            error = failed
        if error is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise CheckpointError(
                database_problem(self._path, error), code=Code.RECORD_UNWRITABLE
            ) from error


def loss_masks(samples: Iterable[TrainingSample]) -> Masks:
    """Returns for each (episode, turn) an array with one entry a sampled token: 1 where a timeline
    trains it."""
    masks: Masks = {}
    for sample in samples:
        for span in sample.spans:
            key = (sample.episode_id, span.turn_index)
            trained = sample.loss_mask[span.start : span.stop].astype(np.uint8)
            masks[key] = trained | masks[key] if key in masks else trained
    return masks


def _episode_row(
    step: int,
    trajectory: Trajectory,
    advantages: Sequence[NDArray[np.float32]],
    tasks_id: int | None,
) -> tuple[Any, ...]:
    plan, turns = trajectory.workflow_task, trajectory.turns
    # A chat endpoint's call has no tokens, and still a version.
    versions = [v for t in turns for _, v in t.versions or [(0, t.completion.policy_version)]]
    nonempty = [a for a in advantages if len(a)]
    times: dict[str, Any] = dict(trajectory.timings)
    if trajectory.began_unix_s:
        times["began_unix_s"] = trajectory.began_unix_s
        times["calls"] = [astuple(call) for call in trajectory.calls]
    return (
        plan.episode_id,
        step,
        plan.mode,
        plan.group_id,
        plan.rollout_index,
        plan.task_id,
        str(trajectory.status),
        str(trajectory.outcome),
        None if trajectory.truncation is None else _to_json(asdict(trajectory.truncation)),
        plan.seed,
        tasks_id,
        None if trajectory.reward is None else float(trajectory.reward),
        None if trajectory.is_success is None else bool(trajectory.is_success),
        len(turns),
        trajectory.num_sampled,
        min(versions, default=None),
        max(versions, default=None),
        max(t.ended_s for t in turns) - min(t.started_s for t in turns) if turns else 0.0,
        float(np.concatenate(nonempty).mean()) if nonempty else None,
        plain_text(plan.task.main_query, MAX_QUERY_LENGTH),
        trajectory.error,
        _to_json(trajectory.reward_breakdown),
        _to_json(trajectory.agent_rewards),
        _to_json(times),
        _to_json(trajectory.output.metadata if trajectory.output else {}),
        _to_json(trajectory.output.log_metrics if trajectory.output else {}),
    )


def _trained_row(episode_id: str, turn_index: int, turn: TurnNumbers) -> tuple[Any, ...]:
    numbers = [_blob_or_none(turn.numbers.get(name), "<f4") for name in NUMBERS]
    cuts = _to_json(dict(turn.cuts)) if turn.cuts else None
    return (episode_id, turn_index, *numbers, cuts)


def _exact_json(task: Task) -> str | None:
    """Returns JSON that reads back as an equal task, or None if the task holds other objects."""
    content = {f.name: getattr(task, f.name) for f in fields(task)}
    plain = plain_value(content)
    return _to_json(plain) if _is_same(plain, content) else None


def _is_same(plain: Any, value: Any) -> bool:
    """Tells whether a value was plain before it was reduced. Only plain parts are compared: `==` of
    other objects could run user code."""
    if type(plain) is not type(value):
        return False
    if isinstance(plain, dict):
        return plain.keys() == value.keys() and all(_is_same(plain[k], value[k]) for k in plain)
    if isinstance(plain, list):
        return len(plain) == len(value) and all(map(_is_same, plain, value))
    return plain == value


def _new_text(turn: Turn, base: Turn | None) -> tuple[int, str]:
    """Returns how many messages the turn shares with its base, and the rest as JSON."""
    kept = common_length([*base.messages, base.reply], turn.messages) if base else 0
    return kept, _to_json(turn.messages[kept:])


def _new_prompt(turn: Turn, base: Turn | None) -> tuple[int, bytes]:
    """Returns how many prompt ids the turn shares with its base, and the rest as a blob."""
    prompt = turn.completion.prompt_ids
    kept = 0
    if base is not None:
        kept = common_length(base.completion.prompt_ids + base.completion.token_ids, prompt)
    return kept, zlib.compress(ids_blob(prompt[kept:]), 1)


def _blob(values: Sequence[int] | Sequence[float] | NDArray[Any], dtype: str) -> bytes:
    return np.asarray(values, dtype=dtype).tobytes()


def _blob_or_none(values: NDArray[Any] | None, dtype: str) -> bytes | None:
    return None if values is None or not len(values) else _blob(values, dtype)
