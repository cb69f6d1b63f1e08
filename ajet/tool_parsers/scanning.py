"""Holds what all parsers use: it extracts calls from a text, reads JSON, splits off thinking.

    extract_calls(text, opening, read, close)    "a OPEN good CLOSE b OPEN bad CLOSE c"
                                              calls [good], content "a  b OPEN bad CLOSE c"

JSON is read strictly: no NaN, no number beyond a float, at most MAX_DEPTH levels. Later code
walks through arguments recursively and writes them as JSON again.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply, ToolCall

MAX_DEPTH = 64

Calls = list[tuple[str, dict[str, Any]]]  # names and arguments
ReadCalls = Callable[[str, int], tuple[Calls, int] | None]
"""Takes (text, position after the opening) and returns the calls there and the position after them,
or None if they are malformed."""


class Tags(NamedTuple):
    opening: str
    closing: str


THINK = Tags("<think>", "</think>")


def extract_calls(
    text: str, opening: re.Pattern[str], read: ReadCalls, close: str = ""
) -> ParsedReply:
    """Returns the reply with its calls extracted. A call that `read` refuses stays in the content,
    up to its `close`, the next opening or the end of the text."""
    content_parts: list[str] = []
    calls: Calls = []
    malformed: list[str] = []
    position = 0
    while match := opening.search(text, position):
        start, body = match.span()
        content_parts.append(text[position:start])
        found = read(text, body)
        if found:
            calls += found[0]
            position = found[1]
        else:
            position = _malformed_end(text, body, opening, close)
            malformed.append(text[start:position])
            content_parts.append(text[start:position])
    content = "".join(content_parts) + text[position:]
    return ParsedReply(
        content=content.strip() if calls else content,
        tool_calls=number_calls(calls),
        malformed=tuple(malformed),
    )


def number_calls(calls: Calls) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call_{i}", name, values) for i, (name, values) in enumerate(calls))


def split_thinking(text: str, tags: Tags = THINK) -> tuple[str | None, str]:
    """Returns the thinking and the rest. The opening tag may be missing, since some templates write
    it themselves. Without a closing tag nothing is thinking."""
    head, closed, tail = text.partition(tags.closing)
    if not closed:
        return None, text
    before, opened, thinking = head.partition(tags.opening)
    if not opened:
        before, thinking = "", head
    return thinking.strip("\n"), before + tail.lstrip("\n")


class ThinkingParser(ABC):
    """Base class of parsers whose replies may begin with thinking. With `splits_thinking=False`
    thinking stays in the content."""

    thinking_tags: ClassVar[Tags] = THINK

    def __init__(self, splits_thinking: bool = True) -> None:
        self._splits_thinking = splits_thinking

    @classmethod
    def from_template(cls, template: str) -> Self:
        """Returns the parser for a chat template with this source."""
        return cls(splits_thinking=cls.thinking_tags.closing in template)

    def parse(self, text: str, tools: Tools | None = None) -> ParsedReply:
        """Implements `ToolParser.parse`."""
        if not self._splits_thinking:
            return self._parse_rest(text, tools)
        reasoning, rest = split_thinking(text, self.thinking_tags)
        return replace(self._parse_rest(rest, tools), reasoning=reasoning)

    @abstractmethod
    def _parse_rest(self, text: str, tools: Tools | None) -> ParsedReply:
        """Takes the reply without its thinking apart."""


def read_json(text: str, start: int) -> tuple[Any, int] | None:
    """Returns the JSON value at `start` (after white space) and its end, or None if there is
    none."""
    try:
        value, end = _DECODER.raw_decode(text, skip_space(text, start))
    except (ValueError, RecursionError):
        return None
    return (value, end) if _depth_fits(value) else None


def read_object(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    """Reads like `read_json`, but only an object."""
    found = read_json(text, start)
    return found if found and isinstance(found[0], dict) else None


def read_call_list(text: str, start: int) -> tuple[Calls, int] | None:
    """Returns the calls in the JSON list at `start` and its end. Each entry is an object with
    `name` and `arguments` (an object, or a JSON text that holds one); with any other entry the
    function returns None."""
    found = read_json(text, start)
    calls = [_listed_call(entry) for entry in found[0]] if found else []
    valid = [call for call in calls if call]
    return (valid, found[1]) if found and valid and len(valid) == len(calls) else None


def _listed_call(entry: Any) -> tuple[str, dict[str, Any]] | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        return None
    arguments = entry.get("arguments")
    if isinstance(arguments, str):
        found = read_object(arguments, 0)
        is_whole = found and skip_space(arguments, found[1]) == len(arguments)
        arguments = found[0] if found and is_whole else None
    return (entry["name"], arguments) if isinstance(arguments, dict) else None


def skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match
    return match.end()


_SPACE = re.compile(r"\s*")


def _malformed_end(text: str, body: int, opening: re.Pattern[str], close: str) -> int:
    following = opening.search(text, body)
    stop = following.start() if following else len(text)
    closed = text.find(close, body, stop) if close else -1
    return closed + len(close) if closed >= 0 else stop


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is no number that JSON can write")
    return value


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _depth_fits(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for parent in level for item in _items(parent)]
        if not level:
            return True
    return False


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
