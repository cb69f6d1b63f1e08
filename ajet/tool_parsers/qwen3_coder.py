"""Parses tool calls of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3: XML without escapes.

<tool_call>
<function=add><parameter=a>2</parameter></function></tool_call>
"""

from __future__ import annotations

import re
from dataclasses import replace

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser
from ajet.tool_parsers.tagged_values import ParameterTags, ParameterTypes, read_values

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_TAGS = ParameterTags(
    key=re.compile(r"\s*<parameter=([^>\n]+)>\n?"),
    end=re.compile(rf"\n?</parameter>(?=\s*(?:<parameter=|</function>|{_CLOSE}))"),
    next_key=re.compile(r"\n(?=<parameter=([^>\n]+)>\n)"),
    call_end=re.compile(rf"\n?(?=</function>\s*{_CLOSE})"),
    next_call=re.compile(rf"{_OPEN}\s*<function="),
)
# In a call without line breaks a parameter may begin anywhere.
_TAGS_INLINE = replace(_TAGS, next_key=re.compile(r"(?=<parameter=([^>\n]+)>)"))
_FIRST_LINE = re.compile(r"\s*<parameter=[^>\n]+>\n")
_END = re.compile(rf"\s*(?:</function>\s*)?{_CLOSE}")
_PYTHON_LITERALS = {"True": True, "False": False, "None": None}  # Qwen3.5's template writes these


class Qwen3CoderParser(ThinkingParser):
    """A value is the text between one line break before and one after it. `</parameter>` and
    `</function>` may be missing. A call without `<tool_call>` stays content."""

    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        function = _FUNCTION.match(text, body)
        if not function:
            return None
        tags = _TAGS if _FIRST_LINE.match(text, function.end()) else _TAGS_INLINE
        types = ParameterTypes(tools, function[1])
        values = read_values(text, function.end(), tags, types.may_have)
        end = _END.match(text, values[1]) if values else None
        if not values or not end:
            return None
        return [Call(function[1], types.typed(values[0], _PYTHON_LITERALS))], end.end()

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the equals sign with the name after it.
        return "<tool_call>\n<function" if name is None else f"<tool_call>\n<function={name}>\n"
