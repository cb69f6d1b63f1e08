"""Parses JSON in tags: objects, as Hermes, Qwen2.5 and Qwen3 write them, and Nemotron's lists.

<tool_call>
{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>
"""

from __future__ import annotations

import json
import re

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import (
    Call,
    ThinkingParser,
    json_call,
    read_call_list,
    read_json,
    skip_space,
)

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


_LIST_OPEN, _LIST_CLOSE = "<TOOLCALL>", "</TOOLCALL>"


class NemotronParser(ThinkingParser):
    """Parses `<TOOLCALL>[{"name": "add", "arguments": {"a": 2}}, …]</TOOLCALL>` of Nemotron Nano 2
    and the Llama Nemotron models; if one entry is not a call, all of it stays content. Nemotron 3
    writes Qwen3-Coder's form."""

    special_tokens = (_LIST_OPEN, _LIST_CLOSE)
    call_opening = re.compile(_LIST_OPEN)
    call_closing = _LIST_CLOSE
    argument_frame = (" ", f"}}]{_LIST_CLOSE}")

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        calls = read_call_list(text, body)
        end = skip_space(text, calls[1]) if calls else body
        if not calls or not text.startswith(_LIST_CLOSE, end):
            return None
        return calls[0], end + len(_LIST_CLOSE)

    def opening(self, name: str | None) -> str:
        if name is None:
            return _LIST_OPEN
        # It ends at a token boundary: tokenizers join the space before an object with its brace.
        return f'{_LIST_OPEN}[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'
