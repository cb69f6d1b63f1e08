"""The reply of `ModelTuner.chat`: a plain message to whoever sends it back, with typed access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.core.inference.endpoint import Completion


class ChatReply(dict[str, Any]):
    """An assistant message in OpenAI's form. It is a dict, to be put into the next call's messages
    as it is; its attributes are the same values with their types, and the tokens behind them.

    `completion` has the token ids, which are no part of the message. What is trained are the
    recorded tokens, whatever becomes of this object.
    """

    def __init__(self, message: Mapping[str, Any], completion: Completion | None = None) -> None:
        super().__init__(message)
        self.completion = completion

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"a ChatReply has no attribute {name!r}: it is a dict, reply[{name!r}], with the "
                "attributes text, tool_calls and completion besides"
            )

    @property
    def text(self) -> str:
        """Returns the content; "" where the reply has tool calls alone."""
        return self.get("content") or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Returns the tool calls in OpenAI's form; an empty list where there are none."""
        return self.get("tool_calls") or []

    @property
    def malformed_tool_calls(self) -> list[str]:
        """Returns the tool calls that could not be read, as they were written."""
        return self.get("malformed_tool_calls") or []
