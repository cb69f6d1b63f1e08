"""Parses tool calls of Nemotron Nano 2 and the Llama Nemotron models: a JSON list in tags.

<TOOLCALL>[{"name": "add", "arguments": {"a": 2}}, {"name": "stop", "arguments": {}}]</TOOLCALL>
"""

from __future__ import annotations

import json
import re

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser, read_call_list, skip_space

_OPEN, _CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class NemotronParser(ThinkingParser):
    special_tokens = (_OPEN, _CLOSE)
    call_opening = re.compile(_OPEN)
    call_closing = _CLOSE
    argument_frame = (" ", f"}}]{_CLOSE}")

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        calls = read_call_list(text, body)
        end = skip_space(text, calls[1]) if calls else body
        return (calls[0], end + len(_CLOSE)) if calls and text.startswith(_CLOSE, end) else None

    def opening(self, name: str | None) -> str:
        if name is None:
            return _OPEN
        # It ends at a token boundary: tokenizers join the space before an object with its brace.
        return f'{_OPEN}[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'
