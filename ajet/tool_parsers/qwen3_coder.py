"""Parses tool calls of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3: XML without escapes.

    <tool_call>
    <function=add>
    <parameter=a>
    2
    </parameter>
    </function>
    </tool_call>

A value is text between one line break before and one after it; its type is that of the tool's
schema (tagged_values.py).

Not covered: a value that holds the closing tags in their order; a call without `<tool_call>`, which
stays content.
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import Calls, ThinkingParser, extract_calls
from ajet.tool_parsers.tagged_values import coerce_types, read_values

_OPENING, _CLOSE = re.compile("<tool_call>"), "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
_VALUE_END = re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))")
_END = re.compile(rf"\s*</function>\s*{_CLOSE}")
_PYTHON_LITERALS = {
    "True": True,
    "False": False,
    "None": None,
}  # as Qwen3.5's template writes these


class Qwen3CoderParser(ThinkingParser):
    """Parses replies of Qwen3-Coder."""

    special_tokens: tuple[str, ...] = ()

    def _parse_rest(self, text: str, tools: Tools | None) -> ParsedReply:
        parsed = extract_calls(text, _OPENING, _read, _CLOSE)
        return coerce_types(parsed, tools, _PYTHON_LITERALS)

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the equals sign with the name after it.
        return "<tool_call>\n<function" if name is None else f"<tool_call>\n<function={name}>\n"


def _read(text: str, body: int) -> tuple[Calls, int] | None:
    function = _FUNCTION.match(text, body)
    if not function:
        return None
    values = read_values(text, function.end(), _PARAMETER, _VALUE_END)
    end = _END.match(text, values[1]) if values else None
    return ([(function[1], values[0])], end.end()) if values and end else None
