"""The interface of a wire format to the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.keys import Grant
from ajet.core.workflow.gateway.request import ChatRequest, RequestError


class Dialect(Protocol):
    """Translates between one wire format and `ChatRequest` and turns. `path` is below ``/v1``."""

    path: str

    def parse(self, body: Mapping[str, Any], grant: Grant) -> ChatRequest:
        """Reads a request's body; raises `RequestError` if it cannot be served."""
        ...

    def reply(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> dict[str, Any]:
        """Returns the body of the response."""
        ...

    def events(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> Iterator[str]:
        """Yields the response as server-sent events. A reply comes whole from the model, so each of
        its parts (text, a call) is one event."""
        ...

    def error_body(self, error: RequestError) -> dict[str, Any]:
        """Returns the body of an error."""
        ...


def event(data: Mapping[str, Any] | str, name: str | None = None) -> str:
    """Returns one server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)  # ASCII: clients split odd lines
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def openai_error(error: RequestError) -> dict[str, Any]:
    """Returns OpenAI's error body, which both its APIs use."""
    return {
        "error": {
            "message": str(error),
            "type": error.error_type,
            "param": error.param,
            "code": error.code,
        }
    }
