"""A group of judged episodes as bytes, and back: a header of JSON, then raw arrays. No pickle.

    magic | length of the header | header | arrays        the last two compressed, fast

    turn 0   prompt [q q q]        sampled [a a]          kept 0, rest [q q q]
    turn 1   prompt [q q q a a t]  sampled [b]            kept 5, rest [t]

A prompt mostly continues the turn before it, so only what is new is stored; of messages likewise.
Token ids are whole numbers of 8 bytes, log-probabilities floats of 8: they come back as they were.

What users leave in dicts (metadata, tool arguments, notes) comes back as JSON has it: a tuple is a
list, a key a string, and what has no JSON form is its `repr`, as in the episode store.

Not covered: samples and advantages, which the trainer makes; bytes of another version of ajet.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ajet.core.errors import DataError
from ajet.core.inference.endpoint import Completion
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn

MAGIC = b"ajet-groups-1\n"
_LENGTH = struct.Struct("<Q")
_FAST = 1
Json = dict[str, Any]


def encode(groups: Sequence[Group]) -> bytes:
    """All of these as one piece."""
    arrays = _Writer()
    header = _dumped([_group_json(group, arrays) for group in groups]).encode()
    return MAGIC + _LENGTH.pack(len(header)) + zlib.compress(header + arrays.content, _FAST)


def decode(content: bytes) -> list[Group]:
    """What `encode` was given."""
    if not content.startswith(MAGIC):
        raise DataError(
            "the buffer holds groups of another version of ajet: begin with an empty one"
        )
    try:
        return _decoded(content)
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"a group in the buffer is damaged: {error}") from error


def _decoded(content: bytes) -> list[Group]:
    at = len(MAGIC)
    (length,) = _LENGTH.unpack_from(content, at)
    body = zlib.decompress(content[at + _LENGTH.size :])
    arrays = _Reader(body, length)
    return [_group(each, arrays) for each in json.loads(body[:length])]


@dataclass
class _Writer:
    """Arrays one after another; `add` says how many entries it was."""

    parts: list[bytes] = field(default_factory=list)

    def add(self, values: Sequence[int] | Sequence[float], dtype: str) -> int:
        self.parts.append(np.asarray(values, dtype=dtype).tobytes())
        return len(values)

    @property
    def content(self) -> bytes:
        return b"".join(self.parts)


@dataclass
class _Reader:
    """The same arrays in the same order."""

    content: bytes
    at: int

    def take(self, number: int, dtype: str) -> tuple[Any, ...]:
        array = np.frombuffer(self.content, dtype, number, self.at)
        self.at += array.nbytes
        return tuple(array.tolist())


def _group_json(group: Group, arrays: _Writer) -> Json:
    return {
        "group_id": group.group_id,
        "task": None if group.task is None else asdict(group.task),
        "baseline": _number(group.baseline),
        "trajectories": [_trajectory_json(t, arrays) for t in group.trajectories],
    }


def _group(content: Json, arrays: _Reader) -> Group:
    task = content["task"]
    members = tuple(_trajectory(each, arrays) for each in content["trajectories"])
    known = None if task is None else Task(**task)
    return Group(content["group_id"], members, known, content["baseline"])


def _trajectory_json(t: Trajectory, arrays: _Writer) -> Json:
    before: list[Turn | None] = [None, *t.turns]
    output = t.output
    return {
        "workflow_task": asdict(t.workflow_task),
        "turns": [_turn_json(turn, b, arrays) for turn, b in zip(t.turns, before, strict=False)],
        "status": str(t.status),
        "output": None if output is None else _output_json(output),
        "reward": _number(t.reward),
        "is_success": None if t.is_success is None else bool(t.is_success),
        "reward_breakdown": t.reward_breakdown,
        "error": t.error,
        "timings": t.timings,
        "earlier_attempts": [_trajectory_json(each, arrays) for each in t.earlier_attempts],
        "failed_as": None if t.failed_as is None else str(t.failed_as),
        "left_out": t.left_out,
    }


def _trajectory(content: Json, arrays: _Reader) -> Trajectory:
    plan, output, failed_as = (content[name] for name in ("workflow_task", "output", "failed_as"))
    turns: list[Turn] = []
    for each in content["turns"]:
        turns.append(_turn(each, turns[-1] if turns else None, arrays))
    return Trajectory(
        WorkflowTask(**plan | {"task": Task(**plan["task"])}),
        tuple(turns),
        EpisodeStatus(content["status"]),
        output=None if output is None else WorkflowOutput(**output),
        reward=content["reward"],
        is_success=content["is_success"],
        reward_breakdown=content["reward_breakdown"],
        error=content["error"],
        timings=content["timings"],
        earlier_attempts=tuple(_trajectory(e, arrays) for e in content["earlier_attempts"]),
        failed_as=None if failed_as is None else EpisodeStatus(failed_as),
        left_out=content["left_out"],
    )


def _output_json(output: WorkflowOutput) -> Json:
    """A subclass of the user's is read by nobody after the judge."""
    return {
        "reward": _number(output.reward),
        "is_success": None if output.is_success is None else bool(output.is_success),
        "metadata": output.metadata,
        "log_metrics": output.log_metrics,
    }


def _turn_json(turn: Turn, before: Turn | None, arrays: _Writer) -> Json:
    completion = turn.completion
    kept = _common(_ids(before), completion.prompt_ids)
    kept_messages = _common(_messages(before), turn.messages)
    return {
        "kept": kept,
        "new": arrays.add(completion.prompt_ids[kept:], "<i8"),
        "sampled": arrays.add(completion.token_ids, "<i8"),
        "logprobs": arrays.add(completion.logprobs, "<f8"),
        "finish_reason": completion.finish_reason,
        "policy_version": completion.policy_version,
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
        "notes": turn.notes,
    }


def _turn(content: Json, before: Turn | None, arrays: _Reader) -> Turn:
    prompt = _ids(before)[: content["kept"]] + arrays.take(content["new"], "<i8")
    completion = Completion(
        prompt,
        arrays.take(content["sampled"], "<i8"),
        arrays.take(content["logprobs"], "<f8"),
        content["finish_reason"],
        content["policy_version"],
    )
    is_same = content["tools"] == _SAME
    own = ("reply", "agent_name", "target_tag", "trainable", "reward", "state_key")
    return Turn(
        completion,
        [*_messages(before)[: content["kept_messages"]], *content["messages"]],
        before.tools if before is not None and is_same else content["tools"],
        started_s=content["started_s"],
        ended_s=content["ended_s"],
        notes=content["notes"],
        **{name: content[name] for name in own},
    )


_SAME = "as before"


def _ids(turn: Turn | None) -> tuple[int, ...]:
    return () if turn is None else turn.completion.prompt_ids + turn.completion.token_ids


def _messages(turn: Turn | None) -> list[Json]:
    return [] if turn is None else [*turn.messages, turn.reply]


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common beginning; mostly all of `a`."""
    if a == b[: len(a)]:
        return len(a)
    return next(n for n, (x, y) in enumerate(zip([*a, None], [*b, _END], strict=False)) if x != y)


_END = object()


def _number(value: float | None) -> float | None:
    """A reward may be numpy's, which JSON does not know."""
    return None if value is None else float(value)


def _dumped(value: Any) -> str:
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):  # keys that are tuples, cycles
        return _encode(_plain(value, ()))


def _unknown(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


_encode = json.JSONEncoder(default=_unknown, separators=(",", ":")).encode


def _plain(value: Any, above: tuple[int, ...]) -> Any:
    """Keys as strings, and a container within itself as its repr."""
    if id(value) in above:
        return repr(value)
    inner = (*above, id(value))
    if isinstance(value, dict):
        return {str(key): _plain(each, inner) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, inner) for each in value]
    return value
