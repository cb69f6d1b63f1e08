"""The reply of `ModelTuner.chat`: a plain message with typed access."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.core.inference.endpoint import Completion


class ChatReply(dict[str, Any]):
    """An assistant message in OpenAI's form: a dict, to be put into the next call's messages. Its
    properties are the same values with their types. `completion` has the token ids; changes of the
    message do not change what is trained.
    """

    def __init__(self, message: Mapping[str, Any], completion: Completion | None = None) -> None:
        super().__init__(message)
        self.completion = completion

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"a ChatReply has no attribute {name!r}: it is a dict, reply[{name!r}], with the "
                "attributes text, tool_calls and completion"
            )

    @property
    def text(self) -> str:
        """Returns the content; "" if the reply has only tool calls."""
        return self.get("content") or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Returns the tool calls in OpenAI's form."""
        return self.get("tool_calls") or []

    @property
    def malformed_tool_calls(self) -> list[str]:
        """Returns the tool calls that could not be read, as they were written."""
        return self.get("malformed_tool_calls") or []
