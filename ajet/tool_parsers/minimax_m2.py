"""Parses tool calls as MiniMax M2 and M2.5 write them: XML without escapes, several in one block.

    <minimax:tool_call>
    <invoke name="add">
    <parameter name="a">2</parameter>
    </invoke>
    <invoke name="stop">
    </invoke>
    </minimax:tool_call>

A value is all the text between its tags; its type is that of the tool's schema (tagged_values.py).
A block counts as a whole: with one call that is malformed all of it stays content.

Source: the chat template and the tool calling guide of MiniMax-M2.

Not covered: a value that holds the closing tags in their order; names in other quotation marks;
MiniMax M1's calls in JSON.
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import Calls, ThinkingParser, extract_calls
from ajet.tool_parsers.tagged_values import coerce_types, read_values

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_OPENING = re.compile(_OPEN)
_INVOKE = re.compile(r'\s*<invoke name="([^"\n]+)">')
_PARAMETER = re.compile(r'\s*<parameter name="([^"\n]+)">')
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter name=|</invoke>))")
_INVOKE_END = re.compile(r"\s*</invoke>")
_END = re.compile(rf"\s*{_CLOSE}")


class MiniMaxM2Parser(ThinkingParser):
    """Parses replies of MiniMax M2 and M2.5."""

    special_tokens = (_OPEN, _CLOSE)

    def _parse_rest(self, text: str, tools: Tools | None) -> ParsedReply:
        return coerce_types(extract_calls(text, _OPENING, _read, _CLOSE), tools)

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the equals sign with the quotation mark.
        begin = f"{_OPEN}\n<invoke name"
        return begin if name is None else f'{begin}="{name}">\n'


def _read(text: str, body: int) -> tuple[Calls, int] | None:
    calls: Calls = []
    position = body
    while invoke := _INVOKE.match(text, position):
        values = read_values(text, invoke.end(), _PARAMETER, _VALUE_END)
        end = _INVOKE_END.match(text, values[1]) if values else None
        if not values or not end:
            return None
        calls.append((invoke[1], values[0]))
        position = end.end()
    end = _END.match(text, position)
    return (calls, end.end()) if calls and end else None
