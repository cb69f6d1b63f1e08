"""What the gateway asks of a wire format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.keys import Grant
from ajet.core.workflow.gateway.request import ChatRequest, RequestError


class Dialect(Protocol):
    """See the package's docstring. `path` is below the base URL's ``/v1``."""

    path: str

    def parse(self, body: Mapping[str, Any], grant: Grant) -> ChatRequest:
        """What the body asks; `RequestError` where that cannot be."""
        ...

    def reply(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> dict[str, Any]:
        """The body of the answer."""
        ...

    def events(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> Iterator[str]:
        """The answer as server-sent events. A reply comes whole from the model, so each of its
        parts (text, a call) is one event, not one a token."""
        ...

    def refusal(self, refusal: RequestError) -> dict[str, Any]:
        """The body of an error."""
        ...


def event(data: Mapping[str, Any] | str, name: str | None = None) -> str:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)  # ASCII: clients split odd lines
    return f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n"


def openai_error(refusal: RequestError) -> dict[str, Any]:
    """OpenAI's error body, of both its APIs."""
    return {
        "error": {
            "message": str(refusal),
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }
