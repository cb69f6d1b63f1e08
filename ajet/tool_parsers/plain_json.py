"""Parses calls that a model writes as plain JSON, in a fence or on separate lines.

Qwen2.5-Coder does so whatever its chat template says. No template writes this form, so a config has
to name the parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import (
    Call,
    CallSpan,
    ThinkingParser,
    json_call,
    offered_functions,
    read_json,
    skip_space,
)

_FENCE = "```"
# The beginning of a call's JSON. The bounded repetition keeps brackets alone from taking long.
_BEGIN = r'[{\[][{\[\s]{0,60}"(?:name|arguments|parameters|function|type|id)"'
_BLOCK = re.compile(rf"^[ \t]*(?:{_FENCE}\w*\s*)?(?={_BEGIN})", re.MULTILINE)
_NAME = re.compile(r'[\[{\s]*"name"\s*:\s*"([^"\n]*)"')
_LINE_END = re.compile(r"[ \t]*(?:\n|\Z)")
_FENCE_END = re.compile(rf"\s*(?:{_FENCE}|\Z)")


class PlainJsonParser(ThinkingParser):
    """A block is one or more objects with a `name` and `arguments` (or `parameters`), or a list of
    them. It counts as calls if all the tools are offered; any other JSON is content."""

    call_opening = _BLOCK
    argument_frame = (" ", f"}}\n{_FENCE}")

    def opening(self, name: str | None) -> str:
        begin = f'{_FENCE}json\n{{"name":'
        if name is None:
            return begin
        return f'{begin} {json.dumps(name, ensure_ascii=False)}, "arguments":'

    def _find_calls(self, text: str, position: int, tools: Tools | None) -> Iterator[CallSpan]:
        """Yields the blocks of calls. A block that names an offered tool and is not JSON is
        malformed."""
        names = offered_functions(tools).keys()
        while block := _BLOCK.search(text, position):
            body = block.end()
            calls, value = self._read(text, body, tools), read_json(text, body)
            if calls and (tools is None or all(call.name in names for call in calls[0])):
                position = calls[1]
                yield CallSpan(block.start(), position, calls[0])
            elif not calls and (name := _NAME.match(text, body)) and name[1] in names:
                position = max(self._malformed_end(text, body + 1), body + 1)
                yield CallSpan(block.start(), position, None)
            else:
                position = value[1] if value else body + 1

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        # The fence is on the line of the JSON or on the line before it.
        is_fenced = text.rfind(_FENCE, text.rfind("\n", 0, body - 1) + 1, body) >= 0
        calls: list[Call] = []
        end = body
        while value := read_json(text, end):
            items = value[0] if isinstance(value[0], list) else [value[0]]
            block_calls = [call for call in map(_call, items) if call]
            if not block_calls or len(block_calls) < len(items):
                return None
            calls += block_calls
            # A fence may hold several values; without one each is a block.
            end = skip_space(text, value[1])
            if not is_fenced or text[end : end + 1] not in ("{", "["):
                end = value[1]
                break
        closing = (_FENCE_END if is_fenced else _LINE_END).match(text, end)
        return (calls, closing.end()) if calls and closing else None


def _call(value: Any) -> Call | None:
    """Returns the call that an object makes; it may have OpenAI's form, with the function
    inside."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    has_arguments = isinstance(value, dict) and ("arguments" in value or "parameters" in value)
    return json_call(value, ("arguments", "parameters")) if has_arguments else None
