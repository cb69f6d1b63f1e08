"""The parser for chat templates that write no tool calls, or in a form that no parser reads.

It reads calls in Hermes' form, since an agent's prompt may ask for them; any other form stays
content. A call cannot be forced.
"""

from __future__ import annotations

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.hermes import HermesParser


class FallbackParser:
    """Parses replies for templates of no known family."""

    special_tokens: tuple[str, ...] = ()

    def __init__(self, hermes: HermesParser) -> None:
        self._hermes = hermes

    @classmethod
    def from_template(cls, template: str) -> FallbackParser:
        return cls(HermesParser.from_template(template))

    def parse(self, text: str, tools: Tools | None = None) -> ParsedReply:
        return self._hermes.parse(text, tools)

    def opening(self, name: str | None) -> str:
        raise ValueError(
            "this chat template's form of tool calls is not read, so no call can be forced: leave "
            "tool_choice out, or name the form in ajet.rollout.tool_parser"
        )
