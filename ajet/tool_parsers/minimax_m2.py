"""Parses tool calls as MiniMax M2 and M2.5 write them: XML without escapes, several in one block.

<minimax:tool_call>
<invoke name="add"><parameter name="a">2</parameter></invoke></minimax:tool_call>
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser
from ajet.tool_parsers.tagged_values import ParameterTags, ParameterTypes, read_values

_OPEN, _CLOSE = "<minimax:tool_call>", "</minimax:tool_call>"
_INVOKE = re.compile(r'\s*<invoke name="([^"\n]+)">')
_AFTER_INVOKE = rf"\s*(?:<invoke name=|{_CLOSE})"
_TAGS = ParameterTags(
    key=re.compile(r'\s*<parameter name="([^"\n]+)">'),
    end=re.compile(rf"</parameter>(?=\s*(?:<parameter name=|</invoke>)|{_AFTER_INVOKE})"),
    next_key=re.compile(r'\n?(?=<parameter name="([^"\n]+)">)'),
    call_end=re.compile(rf"\n?(?=</invoke>{_AFTER_INVOKE})"),
    next_call=re.compile(r'<invoke name="'),
)
_INVOKE_END = re.compile(r"\s*</invoke>")
_NO_INVOKE_END = re.compile(rf"(?={_AFTER_INVOKE})")
_END = re.compile(rf"\s*{_CLOSE}")


class MiniMaxM2Parser(ThinkingParser):
    """`</parameter>` and `</invoke>` may be missing after a value. If one call of a block is
    malformed, all of the block stays content. MiniMax M1's calls in JSON are not parsed. Source:
    the chat template and the tool calling guide of MiniMax-M2."""

    special_tokens = (_OPEN, _CLOSE)
    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        calls: list[Call] = []
        position = body
        while invoke := _INVOKE.match(text, position):
            types = ParameterTypes(tools, invoke[1])
            values = read_values(text, invoke.end(), _TAGS, types.may_have)
            if not values:
                return None
            end = _INVOKE_END.match(text, values[1])
            if not end and values[0]:
                end = _NO_INVOKE_END.match(text, values[1])
            if not end:
                return None
            calls.append(Call(invoke[1], types.typed(values[0])))
            position = end.end()
        end = _END.match(text, position)
        return (calls, end.end()) if calls and end else None

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the equals sign with the quotation mark.
        begin = f"{_OPEN}\n<invoke name"
        return begin if name is None else f'{begin}="{name}">\n'
