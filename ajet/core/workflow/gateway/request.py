"""The common form of requests in all dialects, and the errors that refuse them.

    a dialect's body --parse--> ChatRequest --sample--> turns --reply, events--> a dialect's body

A field that ajet cannot honour is refused by its name; fields that concern only the provider
(`user`, `metadata`, …) are ignored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ajet.core.trajectory.base_recorder import SamplingOverrides

if TYPE_CHECKING:
    from ajet.core.trajectory.turn import Turn
    from ajet.core.workflow.gateway.keys import Grant

MAX_CHOICES = 128


class RequestError(Exception):
    """A request is refused, or fails with an HTTP `status`. The rest are fields of OpenAI's error
    bodies."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        error_type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.error_type, self.code, self.param = status, error_type, code, param


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to the model. `messages` and `tools` have OpenAI's form, `tool_choice` is "auto",
    "none", "required" or a tool's name. `namespaces` maps names of tools to their namespaces. With
    `has_instructions` the first message is only for this request."""

    messages: list[dict[str, Any]]
    has_instructions: bool = False
    tools: list[dict[str, Any]] | None = None
    namespaces: Mapping[str, str] = field(default_factory=dict)
    tool_choice: str | None = None
    parallel_tool_calls: bool = True
    num_choices: int = 1
    overrides: SamplingOverrides = field(default_factory=SamplingOverrides)
    stream: bool = False
    stream_usage: bool = False
    logprobs: bool = False
    model: str = "ajet"


async def sample(grant: Grant, request: ChatRequest) -> list[Turn]:
    """Samples and records one turn for each choice. If one fails, the others are cancelled."""
    grant.recorder.check_calls_left(request.num_choices)
    calls = [
        grant.recorder.chat(
            request.messages,
            request.tools,
            agent_name=grant.agent_name,
            target_tag=grant.target_tag,
            tool_choice=request.tool_choice,
            parallel_tool_calls=request.parallel_tool_calls,
            overrides=request.overrides,
        )
        for _ in range(request.num_choices)
    ]
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


class Unserved(NamedTuple):
    """Says why a field of an API is refused and what to do, and which values change nothing."""

    reason: str
    harmless: Sequence[Any] = ()


class Fields:
    """Reads a request's body field by field; `refuse_rest` refuses the remaining fields."""

    def __init__(self, body: Mapping[str, Any], ignored_fields: Iterable[str] = ()) -> None:
        self._left = {name: value for name, value in body.items() if value is not None}
        for name in ignored_fields:
            self._left.pop(name, None)

    def take(self, name: str, expected: type | tuple[type, ...], default: Any = None) -> Any:
        """Removes a field and returns its value, or `default` if it is absent or null."""
        if name not in self._left:
            return default
        value = self._left.pop(name)
        is_unwanted_bool = isinstance(value, bool) and bool not in _as_tuple(expected)
        if not isinstance(value, expected) or is_unwanted_bool:
            names = " or ".join(t.__name__ for t in _as_tuple(expected))
            raise RequestError(f"{name} must be {names}, not {type(value).__name__}", param=name)
        return value

    def refuse_rest(self, unserved: Mapping[str, Unserved] | None = None) -> None:
        for name, value in self._left.items():
            entry = (unserved or {}).get(name)
            if entry is None:
                raise RequestError(f"unknown field {name}", param=name, code="unknown_parameter")
            if value not in entry.harmless:
                line = f"{name} is not served: {entry.reason}"
                raise RequestError(line, param=name, code="unsupported_parameter")


def object_list(value: Any, name: str) -> list[dict[str, Any]]:
    """Returns `value` if it is a list of objects, and refuses it otherwise."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RequestError(f"{name} must be a list of objects", param=name)
    return value


def overrides(**values: Any) -> SamplingOverrides:
    try:
        return SamplingOverrides(**values)
    except ValueError as error:
        raise RequestError(str(error)) from error


def _as_tuple(expected: type | tuple[type, ...]) -> tuple[type, ...]:
    return expected if isinstance(expected, tuple) else (expected,)
