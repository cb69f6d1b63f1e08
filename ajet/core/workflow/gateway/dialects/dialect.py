"""The interface of a wire format to the gateway."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ajet.core.images.forms import is_image_part
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


def content_of(content: Any, text_of: Callable[[Any], str]) -> str | list[dict[str, Any]]:
    """Returns content as text, or as parts in order where a block is an image. `text_of` refuses
    blocks that are not text."""
    if not isinstance(content, list) or not any(map(is_image_part, content)):
        return text_of(content)
    return [
        block if is_image_part(block) else {"type": "text", "text": text_of([block])}
        for block in content
    ]


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
