"""Encodes judged groups as bytes and decodes them: a header of JSON, then raw arrays. No pickle.

    magic | length of the header | header | arrays        header and arrays are compressed together

Numbers are restored exactly, and so is plain data (trajectory/plain_trajectory.py).
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any

import numpy as np

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import Completion
from ajet.core.model.attention.trie import common_length
from ajet.core.model.routes import Routes
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.text.plain_value import plain_value
from ajet.core.trajectory.limits import Limit, Truncation
from ajet.core.trajectory.trajectory import (
    EpisodeStatus,
    Group,
    Selection,
    SelectionName,
    Trajectory,
)
from ajet.core.trajectory.turn import Turn, TurnNotes
from ajet.core.user_code.activity import TimedCall

MAGIC = b"ajet-groups-2\n"
FORMAT_1 = b"ajet-groups-1\n"
_LENGTH = struct.Struct("<Q")
_FAST = 1
_SAME = "as before"
DAMAGE = (zlib.error, struct.error, ValueError, LookupError, TypeError, AttributeError)
DAMAGE += (RecursionError, OverflowError)
"""Errors that damaged bytes cause."""
Json = dict[str, Any]
RoutesForm = tuple[str, list[int]] | None
"""The dtype and the shape of a completion's experts, if it has any."""


def encode(groups: Sequence[Group]) -> bytes:
    """Returns the groups as one byte string."""
    arrays = _Writer()
    rows: list[Json] = [
        {
            "group_id": group.group_id,
            "task": None if group.task is None else _task_json(group.task),
            "baseline": _number(group.baseline),
            "trajectories": [_trajectory_json(t, arrays) for t in group.trajectories],
        }
        for group in groups
    ]
    return _packed(rows, arrays)


def encode_completion(completion: Completion) -> bytes:
    """Returns one completion as a byte string."""
    arrays = _Writer()
    row = _completion_json(completion, 0, arrays)
    row |= {"versions": completion.versions, "num_old_keys": completion.num_old_keys}
    return _packed(row, arrays)


def _packed(header: Json | list[Json], arrays: _Writer) -> bytes:
    text = _to_json(header).encode()
    return MAGIC + _LENGTH.pack(len(text)) + zlib.compress(text + arrays.content, _FAST)


def decode_completion(content: bytes) -> Completion:
    """Returns the encoded completion. Raises DataError for other or damaged bytes."""
    with _damage_is_reported(content):
        row, arrays = _unpacked(content)
        versions = tuple((length, version) for length, version in row["versions"])
        completion = _completion(row, (), arrays)
        return replace(completion, versions=versions, num_old_keys=row["num_old_keys"])


def decode(content: bytes) -> list[Group]:
    """Returns the encoded groups, also of format 1. Raises DataError for other or damaged bytes."""
    with _damage_is_reported(content):
        groups, arrays = _unpacked(content)
        if content.startswith(FORMAT_1):
            for group in groups:
                group["trajectories"] = [_upgraded_from_format_1(t) for t in group["trajectories"]]
        return [_group(item, arrays) for item in groups]


def _unpacked(content: bytes) -> tuple[Any, _Reader]:
    (length,) = _LENGTH.unpack_from(content, len(MAGIC))
    body = zlib.decompress(content[len(MAGIC) + _LENGTH.size :])
    return json.loads(body[:length]), _Reader(body, length)


@contextmanager
def _damage_is_reported(content: bytes) -> Iterator[None]:
    if not isinstance(content, bytes) or not content.startswith((MAGIC, FORMAT_1)):
        raise DataError(
            "its groups are of another version of ajet: begin with an empty one",
            code=Code.BUFFER_UNUSABLE,
        )
    try:
        yield
    except DAMAGE as error:
        raise DataError(
            f"one of its groups is damaged: {error}", code=Code.BUFFER_UNUSABLE
        ) from error


@dataclass
class _Writer:
    """Concatenates arrays; `add` returns the number of its entries, which the header stores."""

    chunks: list[bytes] = field(default_factory=list)

    def add(self, values: Sequence[int] | Sequence[float], dtype: str) -> int:
        self.chunks.append(np.asarray(values, dtype=dtype).tobytes())
        return len(values)

    def add_routes(self, routes: Routes | None) -> RoutesForm:
        if routes is None:
            return None
        self.chunks.append(routes.tobytes())
        return routes.dtype.str, list(routes.shape)

    @property
    def content(self) -> bytes:
        return b"".join(self.chunks)


@dataclass
class _Reader:
    """Reads the arrays in the order in which they were added."""

    content: bytes
    offset: int

    def take(self, number: int, dtype: str) -> tuple[Any, ...]:
        array = np.frombuffer(self.content, dtype, number, self.offset)
        self.offset += array.nbytes
        return tuple(array.tolist())

    def take_routes(self, form: RoutesForm) -> Routes | None:
        if form is None:
            return None
        dtype, shape = form
        array = np.frombuffer(self.content, dtype, math.prod(shape), self.offset)
        self.offset += array.nbytes
        return array.reshape(shape)


def _task_json(task: Task) -> Json:
    return {f.name: plain_value(getattr(task, f.name)) for f in fields(task)}


def _group(content: Json, arrays: _Reader) -> Group:
    task = content["task"]
    members = tuple(_trajectory(member, arrays) for member in content["trajectories"])
    plain_task = None if task is None else Task(**task)
    return Group(content["group_id"], members, plain_task, content["baseline"])


def _trajectory_json(t: Trajectory, arrays: _Writer) -> Json:
    before: list[Turn | None] = [None, *t.turns]
    output = t.output
    return {
        "workflow_task": {
            **{f.name: getattr(t.workflow_task, f.name) for f in fields(t.workflow_task)},
            "task": _task_json(t.workflow_task.task),
        },
        "turns": [_turn_json(turn, b, arrays) for turn, b in zip(t.turns, before, strict=False)],
        "outcome": str(t.outcome),
        "output": None if output is None else _output_json(output),
        "reward": _number(t.reward),
        "is_success": None if t.is_success is None else bool(t.is_success),
        "reward_breakdown": t.reward_breakdown,
        "failure": t.failure,
        "truncation": None if t.truncation is None else asdict(t.truncation),
        "selection": None if t.selection is None else asdict(t.selection),
        "timings": t.timings,
        "began_unix_s": t.began_unix_s,
        "calls": [astuple(call) for call in t.calls],
        "earlier_attempts": [_trajectory_json(attempt, arrays) for attempt in t.earlier_attempts],
    }


def _trajectory(content: Json, arrays: _Reader) -> Trajectory:
    plan, output = content["workflow_task"], content["output"]
    truncation, selection = content["truncation"], content["selection"]
    turns: list[Turn] = []
    for row in content["turns"]:
        turns.append(_turn(row, turns[-1] if turns else None, arrays))
    return Trajectory(
        WorkflowTask(**plan | {"task": Task(**plan["task"])}),
        tuple(turns),
        EpisodeStatus(content["outcome"]),
        output=None if output is None else WorkflowOutput(**output),
        reward=content["reward"],
        is_success=content["is_success"],
        reward_breakdown=content["reward_breakdown"],
        failure=content["failure"],
        truncation=truncation and Truncation(Limit(truncation["limit"]), truncation["detail"]),
        selection=selection and Selection(SelectionName(selection["name"]), selection["reason"]),
        timings=content["timings"],
        began_unix_s=content.get("began_unix_s", 0.0),  # buffers of before have neither
        calls=tuple(TimedCall(*call) for call in content.get("calls", ())),
        earlier_attempts=tuple(_trajectory(e, arrays) for e in content["earlier_attempts"]),
    )


def _upgraded_from_format_1(content: Json) -> Json:
    """Converts a trajectory of format 1. Its `error` was one text for failure, limit and selection,
    so the limit is unknown."""
    outcome, error = content["failed_as"] or content["status"], content["error"] or ""
    name = content["left_out"] or (content["failed_as"] and SelectionName.ZERO)
    is_cut = outcome == EpisodeStatus.TRUNCATED
    return content | {
        "outcome": outcome,
        "failure": None if name or is_cut else content["error"],
        "truncation": {"limit": Limit.UNKNOWN, "detail": error} if is_cut else None,
        "selection": {"name": name, "reason": error} if name else None,
        "earlier_attempts": [_upgraded_from_format_1(t) for t in content["earlier_attempts"]],
    }


def _output_json(output: WorkflowOutput) -> Json:
    # Only the fields of the base class: nothing reads a user's subclass after the judge.
    return {
        "reward": _number(output.reward),
        "is_success": None if output.is_success is None else bool(output.is_success),
        "metadata": output.metadata,
        "log_metrics": output.log_metrics,
        "agent_rewards": output.agent_rewards,
    }


def _turn_json(turn: Turn, before: Turn | None, arrays: _Writer) -> Json:
    # A prompt mostly continues the turn before it, so only its new tokens and messages are stored:
    #     turn 0   prompt [q q q]        sampled [a a]          kept 0, new [q q q]
    #     turn 1   prompt [q q q a a t]  sampled [b]            kept 5, new [t]
    completion = turn.completion
    kept = common_length(_ids(before), completion.prompt_ids)
    kept_messages = common_length(_messages(before), turn.messages)
    return {
        **_completion_json(completion, kept, arrays),
        "kept_messages": kept_messages,
        "messages": turn.messages[kept_messages:],
        "tools": _SAME if before is not None and before.tools == turn.tools else turn.tools,
        "reply": turn.reply,
        "agent_name": turn.agent_name,
        "target_tag": turn.target_tag,
        "trainable": bool(turn.trainable),
        "reward": _number(turn.reward),
        "state_key": turn.state_key,
        "started_s": turn.started_s,
        "ended_s": turn.ended_s,
        "notes": turn.notes.as_json(),
    }


def _completion_json(completion: Completion, kept: int, arrays: _Writer) -> Json:
    return {
        "kept": kept,
        "new": arrays.add(completion.prompt_ids[kept:], "<i8"),
        "sampled": arrays.add(completion.token_ids, "<i8"),
        "logprobs": arrays.add(completion.logprobs, "<f8"),
        "routes": arrays.add_routes(completion.routes),
        "finish_reason": completion.finish_reason,
        "policy_version": completion.policy_version,
    }


def _completion(content: Json, before: tuple[int, ...], arrays: _Reader) -> Completion:
    return Completion(
        before[: content["kept"]] + arrays.take(content["new"], "<i8"),
        arrays.take(content["sampled"], "<i8"),
        arrays.take(content["logprobs"], "<f8"),
        content["finish_reason"],
        content["policy_version"],
        arrays.take_routes(content.get("routes")),  # buffers of before have none
    )


def _turn(content: Json, before: Turn | None, arrays: _Reader) -> Turn:
    completion = _completion(content, _ids(before), arrays)
    is_same = content["tools"] == _SAME
    same_keys = ("reply", "agent_name", "target_tag", "trainable", "reward", "state_key")
    return Turn(
        completion,
        [*_messages(before)[: content["kept_messages"]], *content["messages"]],
        before.tools if before is not None and is_same else content["tools"],
        started_s=content["started_s"],
        ended_s=content["ended_s"],
        notes=TurnNotes.from_json(content["notes"]),
        **{name: content[name] for name in same_keys},
    )


def _ids(turn: Turn | None) -> tuple[int, ...]:
    return () if turn is None else turn.completion.prompt_ids + turn.completion.token_ids


def _messages(turn: Turn | None) -> list[Json]:
    return [] if turn is None else [*turn.messages, turn.reply]


def _number(value: float | None) -> float | None:
    # A reward may be a numpy scalar, which JSON does not take.
    return None if value is None else float(value)


_to_json = json.JSONEncoder(separators=(",", ":")).encode
