"""Parses tool calls as GLM 4.5 and later, and Poolside's Laguna, write them.

<tool_call>add
<arg_key>a</arg_key><arg_value>2</arg_value></tool_call>
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser
from ajet.tool_parsers.tagged_values import ParameterTags, ParameterTypes, read_values

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_NAME = re.compile(r"\s*([^\s<>{}]+)")
_TAGS = ParameterTags(
    key=re.compile(r"\s*<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>"),
    end=re.compile(rf"</arg_value>(?=\s*(?:<arg_key>|{_CLOSE}))"),
    next_key=re.compile(r"\n?(?=<arg_key>([^<>\n]+)</arg_key>\s*<arg_value>)"),
    call_end=re.compile(rf"\n?(?={_CLOSE})"),
    next_call=re.compile(rf"{_OPEN}\s*[^\s<>{{}}]+\s*(?:<arg_key>|{_CLOSE})"),
)
_END = re.compile(rf"\s*{_CLOSE}")


class GlmParser(ThinkingParser):
    """The line breaks may be missing (as in the template of GLM-4.7). Hunyuan 3's variant, with
    `<tool_sep>` after the name, is not parsed."""

    special_tokens = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        name = _NAME.match(text, body)
        if not name:
            return None
        types = ParameterTypes(tools, name[1])
        values = read_values(text, name.end(), _TAGS, types.may_have)
        end = _END.match(text, values[1]) if values else None
        if not values or not end:
            return None
        return [Call(name[1], types.typed(values[0]))], end.end()

    def opening(self, name: str | None) -> str:
        # The line break ends the name, also for models that write none there.
        return _OPEN if name is None else f"{_OPEN}{name}\n"
