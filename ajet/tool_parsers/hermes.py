"""Parses tool calls as Hermes, Qwen2.5 and Qwen3 write them, and thinking before the answer.

<tool_call>
{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>
"""

from __future__ import annotations

import json
import re

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser, json_call, read_json, skip_space

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class HermesParser(ThinkingParser):
    """A call counts if it is closed and holds one JSON object with a name and, as `arguments`, an
    object (`as_arguments` lists the forms of empty ones). `<tool_call>` may be one token or spelled
    out."""

    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE
    argument_frame = (" ", f"}}\n{_CLOSE}")

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        value = read_json(text, body)
        call = json_call(value[0]) if value else None
        end = skip_space(text, value[1]) if value else body
        return ([call], end + len(_CLOSE)) if call and text.startswith(_CLOSE, end) else None

    def opening(self, name: str | None) -> str:
        if name is None:
            return _OPEN
        # It ends at a token boundary: tokenizers join the space before an object with its brace.
        return f'{_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


class FallbackParser(HermesParser):
    """The parser for chat templates that write no tool calls, or in a form that no parser reads: an
    agent's prompt may ask for Hermes' form."""

    def opening(self, name: str | None) -> str:
        raise ValueError(
            "no parser reads this chat template's form of tool calls, so no call can be forced: "
            "omit tool_choice, or name the form in ajet.rollout.tool_parser"
        )
