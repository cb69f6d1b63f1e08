"""What a parser makes of a reply's text: content, tool calls, reasoning, and what was malformed."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the model asks for. `id` is unique within its reply only."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A reply taken apart. Every text in `malformed` also stands in `content`: nothing is lost."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    malformed: tuple[str, ...] = ()


class ToolParser(Protocol):
    """Reads one model family's way of writing tool calls."""

    def parse(self, text: str) -> ParsedReply:
        """Never raises: what cannot be read as a call is content."""
        ...

    def opening(self, name: str | None) -> str:
        """How a reply begins that is certain to be a call (of the tool `name`)."""
        ...
