"""Notices calls in another form than the one that the run's parser reads.

    hermes reads ```json {"name": "add", "arguments": {…}}```    ParsedReply.other_form == "json"

The reply does not change: it is content, without a call. Only calls of offered tools count, since
an answer may hold JSON or quote tags. core/record/call_forms.py records the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply, ToolParser
from ajet.tool_parsers.scanning import offered_functions


class NoticingParser:
    """Parses with `parser`, and tries `other_parsers`, by their names, if that finds no call."""

    def __init__(self, parser: ToolParser, other_parsers: Mapping[str, ToolParser]) -> None:
        self._parser = parser
        self._other_parsers = other_parsers

    @property
    def special_tokens(self) -> tuple[str, ...]:
        return self._parser.special_tokens

    def opening(self, name: str | None) -> str:
        return self._parser.opening(name)

    def parse(
        self, text: str, tools: Tools | None = None, prompt_end: str | None = None
    ) -> ParsedReply:
        parsed = self._parser.parse(text, tools, prompt_end)
        names = offered_functions(tools).keys()
        if parsed.tool_calls or not any(name in parsed.content for name in names):
            return parsed
        for label, parser in self._other_parsers.items():
            calls = parser.parse(parsed.content, tools).tool_calls
            if calls and all(call.name in names for call in calls):
                return replace(parsed, other_form=label)
        return parsed
