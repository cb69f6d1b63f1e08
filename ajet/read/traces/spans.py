"""Spans of a recorded episode: the episode, and in it each call of a model, a tool, an environment
and the judge. Names and attributes are those of OpenTelemetry's conventions for generative AI
(semantic conventions 1.41, status "development"); additions begin with ``ajet.``. Ids are derived
from the ids of run and episode, so that a trace that is sent twice is the same trace.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ajet.core.user_code.activity import TimedCall
from ajet.read.episode_reader import EpisodeRecord, TurnRecord

Kind = Literal["episode", "model", "tool", "environment", "judge"]
TOOL, JUDGE = "tool ", ("judge ", "the judge of its group")
"""Prefixes of the names of recorded calls; every other call is one of an environment."""
FAILED = ("agent_error", "env_error", "judge_error", "timeout", "aborted", "stopped")


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are Unix seconds; `trace_id` has 128 bits, the other ids have 64. `parent_id`
    is 0 for the episode's span. `inputs` and `outputs` are messages, a tool's arguments and result,
    or the task and its answer."""

    name: str
    category: Kind
    trace_id: int
    span_id: int
    parent_id: int
    started_s: float
    ended_s: float
    attributes: dict[str, str | int | float | bool | list[str]] = field(default_factory=dict)
    inputs: Any = None
    outputs: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the spans of all episodes of a run have in common."""

    run_id: str
    experiment: str
    model: str


def episode_spans(record: EpisodeRecord, run: RunFacts, ended_by_s: float) -> list[Span]:
    """Returns the spans of an episode, its root span first. If the record does not say when it
    began, as in older run folders, it is assumed to end at `ended_by_s`, when its step was
    recorded, and its span gets the attribute `ajet.time_is_estimated`."""
    row = record.row
    # All times of a record are seconds since the episode began.
    ends = [call.ended_s for call in (*record.turns, *record.calls)]
    ends += [record.timings["workflow_s"]] if "workflow_s" in record.timings else []
    length_s = max(ends, default=row.seconds)
    began_s, attributes = record.began_unix_s, _episode_attributes(record, run)
    if began_s is None:
        began_s = ended_by_s - length_s
        attributes["ajet.time_is_estimated"] = True
    trace_id = _number(16, run.run_id, row.episode_id)
    root_id = _number(8, run.run_id, row.episode_id)
    task = record.task
    spans = [
        Span(
            f"invoke_agent {run.experiment}",
            "episode",
            trace_id,
            root_id,
            0,
            began_s,
            began_s + length_s,
            attributes,
            inputs=(row.query if task is None else task.main_query) or row.task_id,
            outputs=record.metadata.get("final_answer"),
            error=row.error if row.status in FAILED else None,
        )
    ]
    span_fields = [*_model_spans(record, run), *_call_spans(record)]
    # Sorted before numbering: the numbers make the span ids, which must be the same at every
    # export.
    span_fields.sort(key=lambda item: (item["started_s"], item["ended_s"]))
    for number, item in enumerate(span_fields):
        times = {name: began_s + item.pop(name) for name in ("started_s", "ended_s")}
        span_id = _number(8, run.run_id, row.episode_id, number)
        spans.append(Span(trace_id=trace_id, span_id=span_id, parent_id=root_id, **times, **item))
    return spans


def _number(num_bytes: int, *path: object) -> int:
    """Returns a number of this many bytes that is never 0, the same for the same path."""
    digest = hashlib.sha256(json.dumps([str(item) for item in path]).encode()).digest()
    return int.from_bytes(digest[:num_bytes], "big") or 1


def _episode_attributes(
    record: EpisodeRecord, run: RunFacts
) -> dict[str, str | int | float | bool | list[str]]:
    row = record.row
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": run.experiment,
        "gen_ai.conversation.id": row.episode_id,
        "gen_ai.usage.output_tokens": row.num_sampled_tokens,
        "gen_ai.evaluation.score.value": row.reward,
        "ajet.run_id": run.run_id,
        "ajet.step": row.step,
        "ajet.mode": row.mode,
        "ajet.group_id": row.group_id,
        "ajet.task_id": row.task_id,
        "ajet.rollout_index": row.rollout_index,
        "ajet.seed": str(record.seed),
        "ajet.status": row.status,
        "ajet.is_success": row.is_success,
        "ajet.advantage": row.advantage,
        "ajet.policy_version.min": row.min_policy_version,
        "ajet.policy_version.max": row.max_policy_version,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _model_spans(record: EpisodeRecord, run: RunFacts) -> Iterator[dict[str, Any]]:
    for turn in record.turns:
        model = run.model if turn.trainable else turn.target_tag
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "ajet",
            "gen_ai.request.model": model,
            "gen_ai.agent.name": turn.agent_name,
            "gen_ai.response.finish_reasons": [turn.finish_reason],
            "gen_ai.usage.input_tokens": len(turn.prompt_ids) or turn.notes.prompt_tokens or 0,
            "gen_ai.usage.output_tokens": len(turn.token_ids) or turn.notes.sampled_tokens or 0,
            "ajet.turn": turn.turn_index,
            "ajet.policy_version": turn.policy_version,
            "ajet.trained_tokens": 0 if turn.loss_mask is None else int(turn.loss_mask.sum()),
        }
        if len(turn.logprobs):
            attributes["ajet.logprob.mean"] = float(turn.logprobs.mean())
        if turn.reward is not None:
            attributes["ajet.reward"] = turn.reward
        yield {
            "name": f"chat {model}",
            "category": "model",
            "started_s": turn.started_s,
            "ended_s": turn.ended_s,
            "attributes": attributes,
            "inputs": turn.messages,
            "outputs": turn.reply,
        }


def _call_spans(record: EpisodeRecord) -> Iterator[dict[str, Any]]:
    tool_calls = _tool_calls(record.turns)
    for call in record.calls:
        part: dict[str, Any] = {"started_s": call.started_s, "ended_s": call.ended_s}
        if call.name.startswith(TOOL):
            yield part | _tool_span(call, tool_calls)
        elif call.name.startswith(JUDGE):
            attributes: dict[str, Any] = {"gen_ai.evaluation.name": call.name}
            if record.row.reward is not None:
                attributes["gen_ai.evaluation.score.value"] = record.row.reward
            outputs = record.metadata.get("judge_reason")
            part |= {"category": "judge", "name": call.name, "attributes": attributes}
            yield part | {"outputs": outputs}
        else:
            yield part | {"category": "environment", "name": call.name}


def _tool_span(call: TimedCall, tool_calls: list[_ToolCall]) -> dict[str, Any]:
    """Returns the span of a tool's call. Arguments and result are those of the first call of this
    tool that a reply made before it and that no earlier span has used."""
    name = call.name.removeprefix(TOOL)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
    }
    span = {"category": "tool", "name": f"execute_tool {name}", "attributes": attributes}
    # Several calls of one tool in a row are matched in the order in which they were made.
    made_call = next((c for c in tool_calls if c.name == name and c.made_s <= call.started_s), None)
    if made_call is None:
        return span
    tool_calls.remove(made_call)
    if made_call.id:
        attributes["gen_ai.tool.call.id"] = made_call.id
    return span | {"inputs": made_call.arguments, "outputs": made_call.result}


@dataclass(slots=True)
class _ToolCall:
    """A tool call as a reply made it, and the result in a later turn's messages."""

    name: str
    id: str
    arguments: Any
    result: Any
    made_s: float


def _tool_calls(turns: Sequence[TurnRecord]) -> list[_ToolCall]:
    results = {
        message["tool_call_id"]: message.get("content")
        for turn in turns
        for message in turn.messages
        if message.get("role") == "tool" and isinstance(message.get("tool_call_id"), str)
    }
    tool_calls: list[_ToolCall] = []
    for turn in turns:
        for call in turn.reply.get("tool_calls") or ():
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping):
                id = str(call.get("id") or "")
                name, arguments = str(function.get("name")), function.get("arguments")
                tool_calls.append(_ToolCall(name, id, arguments, results.get(id), turn.ended_s))
    return tool_calls
