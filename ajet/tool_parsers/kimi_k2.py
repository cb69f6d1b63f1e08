"""Parses tool calls as Kimi K2, K2.5 and K2 Thinking write them: the name is part of the call's id.

<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>
    {"a": 2}<|tool_call_end|><|tool_calls_section_end|>
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import NAMED_ID, Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser, read_arguments

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
_CALL_END = "<|tool_call_end|>"
_ID = re.compile(rf"\s*([^\s<>{{}}]+)\s*{re.escape(_ARGUMENTS)}")
_CLOSING = re.compile(rf"\s*{re.escape(_CALL_END)}(?:\s*{re.escape(_CALLS_END)})?")


class KimiK2Parser(ThinkingParser):
    """The prefix `functions.`, the number and the tokens around the section may be missing. The
    calls before a malformed one stay calls. A complete id is the call's id in the conversation too;
    for any other `ChatTemplate` writes one. Source: the chat template and the tool calling guide of
    Kimi-K2-Instruct."""

    special_tokens = (_CALLS, _CALL, _ARGUMENTS, _CALL_END, _CALLS_END)
    call_opening = re.compile(rf"{re.escape(_CALLS)}\s*(?:{re.escape(_CALL)})?|{re.escape(_CALL)}")
    call_closing = _CALL_END
    argument_frame = ("", _CALL_END + _CALLS_END)
    id_form = NAMED_ID

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        call_id = _ID.match(text, body)
        arguments = read_arguments(text, call_id.end()) if call_id else None
        closing = _CLOSING.match(text, arguments[1]) if arguments else None
        if not call_id or not arguments or not closing:
            return None
        # `functions.add:0`, `functions.add` and `add:0` are all `add`; a number names no tool.
        name = call_id[1].removeprefix("functions.")
        before, _, number = name.rpartition(":")
        name = before if number.isdigit() else name
        return ([Call(name, arguments[0], call_id[1])], closing.end()) if name else None

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the dot with the name after it.
        begin = f"{_CALLS}{_CALL}functions"
        return begin if name is None else f"{begin}.{name}:0{_ARGUMENTS}"
