"""Parses tool calls as Llama 3.1, 3.2 and 3.3 write them: the reply is one JSON object.

    {"name": "add", "parameters": {"a": 2, "b": 3}}
    <|python_tag|>{"name": "add", "parameters": {"a": 2, "b": 3}}

Without the tag the whole reply must be the call, for an object within other text may be an answer;
before the tag there may be content. `arguments` is read for `parameters`; beside it only a `type`
and an `id` may stand.

Not covered: several calls in one reply (the family's template refuses to write them, so they stay
content); the built-in tools' code after the tag; Llama 4's calls in Python's form.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import Calls, ThinkingParser, number_calls, read_object, skip_space

_TAG = "<|python_tag|>"
_LOOKS_LIKE_A_CALL = re.compile(r'\s*\{\s*"(name|parameters)"')


class Llama3Parser(ThinkingParser):
    """Parses replies of Llama 3.1, 3.2 and 3.3."""

    special_tokens = (_TAG,)

    def __init__(self, splits_thinking: bool = False) -> None:
        super().__init__(splits_thinking)

    def _parse_rest(self, text: str, tools: Tools | None) -> ParsedReply:
        return _parse(text)

    def opening(self, name: str | None) -> str:
        # Both end at a token boundary: tokenizers join the space with the text after it.
        if name is None:
            return '{"name":'
        return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters":'


def _parse(text: str) -> ParsedReply:
    before, tagged, body = text.rpartition(_TAG)
    calls = _read(body)
    if calls:
        return ParsedReply(before.strip(), number_calls(calls))
    if tagged:
        return ParsedReply(text, malformed=(tagged + body,))
    return ParsedReply(text, malformed=(text,) if _LOOKS_LIKE_A_CALL.match(text) else ())


def _read(body: str) -> Calls | None:
    """Returns the call if `body` is one (white space aside), else None."""
    found = read_object(body, 0)
    if not found or skip_space(body, found[1]) < len(body) or not _is_call(found[0]):
        return None
    value = found[0]
    return [(value["name"], _arguments(value))]


def _is_call(value: dict[str, Any]) -> bool:
    return (
        isinstance(value.get("name"), str)
        and bool(value["name"])
        and isinstance(_arguments(value), dict)
        and len(value.keys() - {"type", "id"}) == 2
    )


def _arguments(value: dict[str, Any]) -> Any:
    return value.get("parameters", value.get("arguments"))
