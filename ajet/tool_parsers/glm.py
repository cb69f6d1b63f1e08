"""Parses tool calls as GLM 4.5 and later write them, with or without the line breaks.

    <tool_call>add
    <arg_key>a</arg_key>
    <arg_value>2</arg_value>
    </tool_call>

A value is all the text between its tags; its type is that of the tool's schema (tagged_values.py).
Poolside's Laguna writes the same.

Source: the chat templates of GLM-4.5, GLM-4.6 (line breaks) and GLM-4.7 (none).

Not covered: a value that holds the closing tags in their order; Hunyuan 3, which sets `<tool_sep>`
after the name.
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import Calls, ThinkingParser, extract_calls
from ajet.tool_parsers.tagged_values import coerce_types, read_values

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_OPENING = re.compile(_OPEN)
_NAME = re.compile(r"\s*([^\s<>{}]+)")
_KEY = re.compile(r"\s*<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(rf"</arg_value>(?=\s*(?:<arg_key>|{_CLOSE}))")
_END = re.compile(rf"\s*{_CLOSE}")


class GlmParser(ThinkingParser):
    """Parses replies of GLM 4.5 and later."""

    special_tokens = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def _parse_rest(self, text: str, tools: Tools | None) -> ParsedReply:
        return coerce_types(extract_calls(text, _OPENING, _read, _CLOSE), tools)

    def opening(self, name: str | None) -> str:
        # The line break ends the name, also for models that write none there.
        return _OPEN if name is None else f"{_OPEN}{name}\n"


def _read(text: str, body: int) -> tuple[Calls, int] | None:
    name = _NAME.match(text, body)
    values = read_values(text, name.end(), _KEY, _VALUE_END) if name else None
    end = _END.match(text, values[1]) if values else None
    return ([(name[1], values[0])], end.end()) if name and values and end else None
