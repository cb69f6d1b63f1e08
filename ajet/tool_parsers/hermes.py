"""Parses tool calls as Hermes, Qwen2.5 and Qwen3 write them, and thinking before the answer.

    <think>I need 2+3.</think>
    Let me compute.
    <tool_call>
    {"name": "add", "arguments": {"a": 2, "b": 3}}
    </tool_call>

gives reasoning "I need 2+3.", content "Let me compute." and one call. A call counts when it is
closed and holds one JSON object with a name and, as `arguments`, an object (or a name and nothing
else). Any other stays in the content as it was written.

Not covered: whether `<tool_call>` was sampled as one token or spelled out; both count.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import Calls, ThinkingParser, extract_calls, read_json, skip_space

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_OPENING = re.compile(_OPEN)


class HermesParser(ThinkingParser):
    """Parses replies of Hermes, Qwen2.5 and Qwen3."""

    special_tokens: tuple[str, ...] = ()

    def _parse_rest(self, text: str, tools: Tools | None) -> ParsedReply:
        return extract_calls(text, _OPENING, _read, _CLOSE)

    def opening(self, name: str | None) -> str:
        if name is None:
            return _OPEN
        # It ends at a token boundary: tokenizers join the space before an object with its brace.
        return f'{_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


class FallbackParser(HermesParser):
    """Parses replies for chat templates that write no tool calls, or in a form that no parser
    reads: an agent's prompt may ask for Hermes' form."""

    def opening(self, name: str | None) -> str:
        raise ValueError(
            "this chat template's form of tool calls is not read, so no call can be forced: leave "
            "tool_choice out, or name the form in ajet.rollout.tool_parser"
        )


def _read(text: str, body: int) -> tuple[Calls, int] | None:
    found = read_json(text, body)
    if not found or not _is_call(found[0]):
        return None
    value, end = found
    end = skip_space(text, end)
    if not text.startswith(_CLOSE, end):
        return None
    return [(value["name"], value.get("arguments", {}))], end + len(_CLOSE)


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and bool(value["name"])
        and (isinstance(value.get("arguments"), dict) or set(value) == {"name"})
    )
