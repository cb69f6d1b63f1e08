"""Reads `episodes.sqlite`, also during the run: pages of rows, and complete episodes with their
turns.
"""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import EpisodeNotFound, RecordError
from ajet.core.inference.endpoint import Completion
from ajet.core.record.episode_schema import database_problem, ids_of_blob, open_for_reading
from ajet.core.task.task import Task
from ajet.core.text.error_text import one_line
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.trained_tokens import NUMBERS, TurnNumbers
from ajet.core.trajectory.trajectory import EpisodeStatus
from ajet.core.trajectory.turn import TurnNotes
from ajet.core.user_code.activity import TimedCall

PAGE_SIZE = 200
_LISTED = (
    "id, episode_id, step, mode, group_id, rollout_index, task_id, status, reward, is_success, "
    "num_turns, num_sampled_tokens, min_policy_version, max_policy_version, seconds, advantage, "
    "query, error"
)


def where_clause(conditions: Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Returns the SQL conditions whose argument is not None, joined by AND, and their arguments."""
    used = {sql: value for sql, value in conditions.items() if value is not None}
    return " AND ".join(used) or "1", list(used.values())


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Selects episodes by what is in their rows; a field that is None selects all. Ranges include
    both ends."""

    first_step: int | None = None
    last_step: int | None = None
    mode: str | None = None
    status: str | None = None
    is_success: bool | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    group_id: str | None = None

    def conditions(self) -> dict[str, Any]:
        """Returns SQL conditions with the argument of each."""
        return {
            "step >= ?": self.first_step,
            "step <= ?": self.last_step,
            "mode = ?": self.mode,
            "status = ?": self.status,
            "is_success = ?": self.is_success,
            "reward >= ?": self.min_reward,
            "reward <= ?": self.max_reward,
            "group_id = ?": self.group_id,
        }


@dataclass(frozen=True, slots=True)
class EpisodeFilter(RowSelection):
    """Selects episodes as `RowSelection` does; `text` is searched in the query."""

    text: str | None = None

    def where(self) -> tuple[str, list[Any]]:
        """Returns SQL conditions and their arguments."""
        query = f"%{_escape(self.text)}%" if self.text else None
        return where_clause({**self.conditions(), "query LIKE ? ESCAPE '!'": query})


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """Holds one line of the list; the fields are described in episode_schema.py."""

    id: int
    episode_id: str
    step: int
    mode: str
    group_id: str
    rollout_index: int
    task_id: str
    status: str
    reward: float | None
    is_success: bool | None
    num_turns: int
    num_sampled_tokens: int
    min_policy_version: int | None
    max_policy_version: int | None
    seconds: float
    advantage: float | None
    query: str
    error: str | None


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """Holds one complete call of the model; the last four arrays have an entry for each sampled
    token.

    `advantages` and `loss_mask` are None where nothing was trained.
    """

    turn_index: int
    agent_name: str
    target_tag: str
    trainable: bool
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    reply: dict[str, Any]
    finish_reason: str
    policy_version: int
    reward: float | None
    state_key: str | None
    started_s: float
    ended_s: float
    notes: TurnNotes
    prompt_ids: NDArray[np.int32] | NDArray[np.int64]
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    advantages: NDArray[np.float32] | None
    loss_mask: NDArray[np.uint8] | None
    base_turn: int | None
    """The index of the turn that this one is stored relative to: the agent's previous call."""
    prompt_kept: int
    """The number of `prompt_ids` that the base turn already had (in its prompt and completion)."""
    trained: TurnNumbers | None = None
    """What the update computed for the sampled tokens; None where it did not compute the turn."""

    @property
    def completion(self) -> Completion:
        """Returns the call as the engine answered it."""
        return Completion(
            tuple(self.prompt_ids.tolist()),
            tuple(self.token_ids.tolist()),
            tuple(self.logprobs.tolist()),
            self.finish_reason,  # type: ignore[arg-type]  a FinishReason was written
            self.policy_version,
        )


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """Holds one episode with its turns."""

    row: EpisodeRow
    reward_breakdown: dict[str, float]
    """The reward by who gave it: judge, workflow."""
    agent_rewards: dict[str, float]
    """The reward of each trained agent by its name; empty where all earned the episode's."""
    timings: dict[str, float]
    """The seconds of each phase."""
    began_unix_s: float | None
    """When the attempt began; None where it did not, and in older files."""
    calls: tuple[TimedCall, ...]
    """The calls of tools, environments and the judge, in the clock of the turns."""
    metadata: dict[str, Any]
    log_metrics: dict[str, float]
    turns: tuple[TurnRecord, ...]
    outcome: str
    """The status before the failure policy or a selection replaced it."""
    truncation: Truncation | None
    """The limit that ended it; `Limit.UNKNOWN` where an earlier release stored only the line."""
    seed: int
    task: Task | None
    """The task as it was given to the workflow; None where JSON cannot hold it."""


_HAS_TRAINED = "SELECT 1 FROM sqlite_master WHERE name = 'trained_tokens'"  # added later
_REAL = (int, float)
_TYPES = dict.fromkeys(EpisodeRow.__dataclass_fields__, str) | {
    **dict.fromkeys(("id", "step", "rollout_index", "num_turns", "num_sampled_tokens"), int),
    **dict.fromkeys(("min_policy_version", "max_policy_version", "is_success"), (int, NoneType)),
    **dict.fromkeys(("reward", "advantage"), (*_REAL, NoneType)),
    "seconds": _REAL,
    "error": (str, NoneType),
}
"""The types of a row's columns: a damaged file may hold others, as SQLite does not check them."""


class EpisodeReader:
    """Reads one run's episodes. An object is not shared between threads.

    page = reader.list(EpisodeFilter(status="ok", text="apples"), limit=50)
    more = reader.list(…, after=page[-1].id)  # newest first; the next page begins below that id
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = open_for_reading(path)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns the errors that a damaged file causes into a CheckpointError."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise RecordError(database_problem(self._path, error)) from error
        except (
            ValueError,
            TypeError,
            IndexError,
            AttributeError,
            RecursionError,
            zlib.error,
        ) as error:
            raise RecordError(
                f"{self._path} is damaged: {one_line(error)}; restore a copy of it"
            ) from error

    def list(
        self, which: EpisodeFilter | None = None, *, limit: int = 50, after: int | None = None
    ) -> list[EpisodeRow]:
        """Returns one page, newest first; `after` is the last id of the previous page."""
        condition, arguments = (which or EpisodeFilter()).where()
        with self._reading():
            rows = self._connection.execute(
                f"SELECT {_LISTED} FROM episodes WHERE {condition} AND id < ? "
                "ORDER BY id DESC LIMIT ?",
                [*arguments, 2**62 if after is None else after, limit],
            )
            return [_episode_row(row) for row in rows]

    def count(self, which: EpisodeFilter | None = None) -> int:
        """Returns the number of episodes that pass the filter."""
        condition, arguments = (which or EpisodeFilter()).where()
        query = f"SELECT count(*) FROM episodes WHERE {condition}"
        with self._reading():
            return self._connection.execute(query, arguments).fetchone()[0]

    def ids(self, which: EpisodeFilter | None = None, limit: int | None = None) -> Sequence[int]:
        """Returns the ids of the newest `limit` episodes, newest first."""
        condition, arguments = (which or EpisodeFilter()).where()
        query = f"SELECT id FROM episodes WHERE {condition} ORDER BY id DESC LIMIT ?"
        with self._reading():
            rows = self._connection.execute(query, [*arguments, -1 if limit is None else limit])
            return [row[0] for row in rows]

    def questions(self) -> Iterator[tuple[str, str, str, int]]:
        """Yields the mode, the question and the task's id of training and validation episodes, with
        their number."""
        query = (
            "SELECT mode, query, task_id, count(*) FROM episodes WHERE mode IN ('train', 'eval') "
            "GROUP BY mode, query, task_id"
        )
        with self._reading():
            yield from map(tuple, self._connection.execute(query))

    def newer_than(self, id: int, limit: int = PAGE_SIZE) -> list[EpisodeRow]:
        """Returns the rows that were written after the one with this id, oldest first."""
        with self._reading():
            rows = self._connection.execute(
                f"SELECT {_LISTED} FROM episodes WHERE id > ? ORDER BY id LIMIT ?", [id, limit]
            )
            return [_episode_row(row) for row in rows]

    def last_id(self) -> int:
        """Returns the id of the newest row, 0 where there is none."""
        with self._reading():
            query = "SELECT coalesce(max(id), 0) FROM episodes"
            return self._connection.execute(query).fetchone()[0]

    def walk(
        self, which: EpisodeFilter | None = None, limit: int | None = None, after: int | None = None
    ) -> Iterator[EpisodeRecord]:
        """Yields the newest `limit` episodes, or all, complete and newest first; `after` leaves out
        the episode with this id and newer ones."""
        condition, arguments = (which or EpisodeFilter()).where()
        while limit is None or limit > 0:
            size = min(PAGE_SIZE, limit or PAGE_SIZE)
            with self._reading():
                page = self._records(
                    f"{condition} AND episodes.id < ? ORDER BY episodes.id DESC LIMIT ?",
                    [*arguments, 2**62 if after is None else after, size],
                )
            yield from page
            if not page:
                return
            after = page[-1].row.id
            limit = None if limit is None else limit - len(page)

    def episode(self, episode_id: str) -> EpisodeRecord:
        """Returns one complete episode. Raises `DataError` when it does not exist."""
        with self._reading():
            records = self._records("episode_id = ?", [episode_id])
        if not records:
            raise EpisodeNotFound(f"no episode {episode_id!r}")
        return records[0]

    def _records(self, condition: str, arguments: Sequence[Any]) -> Sequence[EpisodeRecord]:
        """Returns the complete episodes of a condition. Equal lists of tools are one object."""
        # Three queries for the whole page, however many episodes it has.
        rows = self._connection.execute(
            "SELECT episodes.*, tasks.task FROM episodes LEFT JOIN tasks ON tasks.id = tasks_id "
            f"WHERE {condition}",
            arguments,
        ).fetchall()
        ids = [row["episode_id"] for row in rows]
        among = f"WHERE episode_id IN ({', '.join('?' * len(ids))})"
        turns: dict[str, list[sqlite3.Row]] = {}
        for turn in self._connection.execute(
            "SELECT turns.*, tools.tools FROM turns LEFT JOIN tools ON tools.id = turns.tools_id "
            f"{among} ORDER BY episode_id, turn_index",
            ids,
        ):
            turns.setdefault(turn["episode_id"], []).append(turn)
        trained: dict[str, dict[int, TurnNumbers]] = {}
        # Files of earlier releases lack this table.
        if self._connection.execute(_HAS_TRAINED).fetchone() is not None:
            for turn in self._connection.execute(f"SELECT * FROM trained_tokens {among}", ids):
                numbers = trained.setdefault(turn["episode_id"], {})
                arrays = {n: turn[n] for n in NUMBERS if turn[n] is not None}
                cuts = {} if turn["cuts"] is None else _checked_type(json.loads(turn["cuts"]), dict)
                numbers[turn["turn_index"]] = TurnNumbers(
                    {n: np.frombuffer(array, "<f4") for n, array in arrays.items()}, cuts
                )
        tools: dict[str, Any] = {}
        return [
            _episode_record(row, _turns(turns.get(name, ()), trained.get(name, {}), tools))
            for name, row in zip(ids, rows, strict=True)
        ]

    def find(self, name: str) -> str:
        """Returns the id that equals `name`, or the only id that begins with it. Raises
        `DataError`, with similar ids, when there is none or more than one."""
        below = f"{_escape(name)}%"
        query = "SELECT episode_id FROM episodes WHERE episode_id LIKE ? ESCAPE '!' ORDER BY 1"
        with self._reading():
            matches = [row[0] for row in self._connection.execute(query, [below])]
        if name in matches:
            return name
        if len(matches) == 1:
            return matches[0]
        if matches:
            some = ", ".join(matches[:3])
            raise EpisodeNotFound(
                f"{len(matches)} episodes begin with {name!r} ({some}, …): write more"
            )
        near = ", ".join(get_close_matches(name, self._neighbours(name), 3, 0.5))
        raise EpisodeNotFound(
            f"no episode {name!r}; {f'near: {near}' if near else 'see ajet view'}"
        )

    def _neighbours(self, name: str) -> list[str]:
        """Returns the ids before and after `name` in their order."""
        ids: list[str] = []
        for sign, order in ((">=", "ASC"), ("<", "DESC")):
            query = f"SELECT episode_id FROM episodes WHERE episode_id {sign} ?"
            rows = self._connection.execute(f"{query} ORDER BY episode_id {order} LIMIT 50", [name])
            ids += [row[0] for row in rows]
        return ids

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> EpisodeReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked_type(value: Any, expected: Any) -> Any:
    """Returns the value. Raises TypeError for another type, which a damaged file may hold."""
    if not isinstance(value, expected):
        raise TypeError(f"a {type(value).__name__} where another type is expected")
    return value


def _escape(text: str) -> str:
    """Returns the text as a part of a LIKE pattern, with % and _ as plain characters."""
    return re.sub("([!%_])", r"!\1", text)


def _episode_row(row: sqlite3.Row) -> EpisodeRow:
    fields = {name: row[name] for name in EpisodeRow.__dataclass_fields__}
    for name, value in fields.items():
        _checked_type(value, _TYPES[name])
    fields["is_success"] = None if row["is_success"] is None else bool(row["is_success"])
    return EpisodeRow(**fields)


def _episode_record(row: sqlite3.Row, turns: tuple[TurnRecord, ...]) -> EpisodeRecord:
    extras = ("reward_breakdown", "timings", "metadata", "log_metrics")
    content = {name: _checked_type(json.loads(row[name]), dict) for name in extras}
    began_unix_s = _checked_type(content["timings"].pop("began_unix_s", None), (*_REAL, NoneType))
    calls = _checked_type(content["timings"].pop("calls", []), list)
    content["reward_breakdown"], agent_rewards = _rewards(row, content["reward_breakdown"])
    return EpisodeRecord(
        row=_episode_row(row),
        **content,
        agent_rewards=agent_rewards,
        began_unix_s=began_unix_s,
        calls=tuple(
            TimedCall(
                _checked_type(name, str),
                _checked_type(started_s, _REAL),
                _checked_type(ended_s, _REAL),
            )
            for name, started_s, ended_s in calls
        ),
        turns=turns,
        outcome=row["ended_as"],
        truncation=_truncation(row),
        seed=row["seed"],
        task=None if row["task"] is None else Task(**json.loads(row["task"])),
    )


def _rewards(
    row: sqlite3.Row, breakdown: dict[str, float]
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the rewards by giver, and those of agents, which earlier releases wrote into the
    breakdown as "agent NAME"."""
    if "agent_rewards" in row.keys() and row["agent_rewards"] is not None:  # noqa: SIM118  a sqlite3.Row
        return breakdown, _checked_type(json.loads(row["agent_rewards"]), dict)
    before = "agent "
    agents = {name for name in breakdown if name.startswith(before)}
    by_giver = {name: value for name, value in breakdown.items() if name not in agents}
    return by_giver, {name.removeprefix(before): breakdown[name] for name in agents}


def _truncation(row: sqlite3.Row) -> Truncation | None:
    if row["ended_as"] != EpisodeStatus.TRUNCATED:
        return None
    if "truncation" not in row.keys() or row["truncation"] is None:  # noqa: SIM118  a sqlite3.Row
        return Truncation(Limit.UNKNOWN, row["error"] or "")
    content = _checked_type(json.loads(row["truncation"]), dict)
    return Truncation(Limit(content["limit"]), _checked_type(content["detail"], str))


def _turns(
    rows: Iterable[sqlite3.Row], trained: Mapping[int, TurnNumbers], tools: dict[str, Any]
) -> tuple[TurnRecord, ...]:
    """Restores an episode's turns. `tools` caches lists of tools by their JSON."""
    turns: list[TurnRecord] = []
    for row in rows:
        text = row["tools"]
        if text is not None and text not in tools:
            tools[text] = json.loads(text)
        offered = None if text is None else tools[text]
        turns.append(_turn(row, turns, offered, trained.get(row["turn_index"])))
    return tuple(turns)


def _turn(
    row: sqlite3.Row, earlier: list[TurnRecord], tools: Any, trained: TurnNumbers | None
) -> TurnRecord:
    """Restores a turn: the beginning of messages and prompt is that of its base turn."""
    base = None if row["base_turn"] is None else earlier[row["base_turn"]]
    messages = _checked_type(json.loads(row["messages"]), list)
    for message in messages:
        _checked_type(message, dict)
    # Stored are only the ids that the base turn (its prompt, then its reply) does not begin with.
    prompt_ids = ids_of_blob(zlib.decompress(row["prompt_ids"]))
    if base is not None:
        messages = [*base.messages, base.reply][: row["messages_kept"]] + messages
        seen = np.concatenate([base.prompt_ids, base.token_ids])
        prompt_ids = np.concatenate([seen[: row["prompt_kept"]], prompt_ids])
    return TurnRecord(
        **{name: row[name] for name in ("turn_index", "agent_name", "target_tag", "base_turn")},
        **{name: row[name] for name in ("finish_reason", "policy_version", "prompt_kept")},
        reward=row["reward"],
        state_key=row["state_key"],
        started_s=row["started_s"],
        ended_s=row["ended_s"],
        trainable=bool(row["trainable"]),
        messages=messages,
        tools=tools,
        reply=_checked_type(json.loads(row["reply"]), dict),
        notes=TurnNotes.from_json(_checked_type(json.loads(row["notes"]), dict)),
        prompt_ids=prompt_ids,
        token_ids=np.frombuffer(row["token_ids"], "<i4"),
        logprobs=np.frombuffer(row["logprobs"], "<f4"),
        advantages=None if row["advantages"] is None else np.frombuffer(row["advantages"], "<f4"),
        loss_mask=None if row["loss_mask"] is None else np.frombuffer(row["loss_mask"], "u1"),
        trained=trained,
    )
