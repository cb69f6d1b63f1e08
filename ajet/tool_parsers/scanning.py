"""What all parsers share: finding thinking and calls in a text, and reading JSON.

<think>hm</think>a OPEN good CLOSE b OPEN bad CLOSE c
    reasoning "hm", calls [good], content "a  b OPEN bad CLOSE c"
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply, ToolCall

MAX_DEPTH = 64
"""The levels of JSON that are read: later code walks through arguments recursively, and writes them
as JSON again. For the same reason NaN and numbers beyond a float are refused."""


class Call(NamedTuple):
    """A call as a parser reads it. `id` is the one that the model wrote, if any."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


class CallSpan(NamedTuple):
    """A part of a reply that is meant as calls. `calls` is None if they are malformed."""

    start: int
    end: int
    calls: list[Call] | None


class Tags(NamedTuple):
    opening: str
    closing: str


THINK = Tags("<think>", "</think>")


class ThinkingParser(ABC):
    """Base class of parsers whose replies may begin with thinking. With `splits_thinking=False`
    thinking stays in the content.

    Thinking begins with the reply: with the opening tag, or without it if the prompt ended with
    that. It ends at the first closing tag outside a call, whose arguments may hold any text. Tags
    anywhere else are text."""

    special_tokens: tuple[str, ...] = ()
    thinking_tags: Tags = THINK
    call_opening: re.Pattern[str]
    call_closing: str = ""
    argument_frame: tuple[str, str] | None = None
    id_form: re.Pattern[str] | None = None  # ids of calls that the family's template can write

    def __init__(self, splits_thinking: bool = True) -> None:
        self._splits_thinking = splits_thinking

    @classmethod
    def from_template(cls, template: str) -> Self:
        return cls(splits_thinking=cls.thinking_tags.closing in template)

    def parse(
        self, text: str, tools: Tools | None = None, prompt_end: str | None = None
    ) -> ParsedReply:
        thinking = self._thinking(text, tools, prompt_end) if self._splits_thinking else None
        rest = text if thinking is None else text[thinking.stop :].lstrip("\n")
        parsed = extract_calls(rest, self._find_calls(rest, 0, tools), self.id_form)
        if thinking is None:
            return parsed
        tag = len(self.thinking_tags.closing)
        reasoning = text[thinking.start : thinking.stop - tag].strip("\n")
        return replace(parsed, reasoning=reasoning)

    @abstractmethod
    def opening(self, name: str | None) -> str:
        """Implements `ToolParser.opening`."""

    @abstractmethod
    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        """Returns the calls at `body`, the position after an opening, and the position after them;
        None if they are malformed."""

    def _find_calls(self, text: str, position: int, tools: Tools | None) -> Iterator[CallSpan]:
        """Yields the calls from `position` on. A malformed one extends to its closing, the next
        opening or the end of the text."""
        while match := self.call_opening.search(text, position):
            start, body = match.span()
            result = self._read(text, body, tools)
            calls, position = result or (None, self._malformed_end(text, body))
            yield CallSpan(start, position, calls)

    def _malformed_end(self, text: str, body: int) -> int:
        next_opening = self.call_opening.search(text, body)
        stop = next_opening.start() if next_opening else len(text)
        closing = text.find(self.call_closing, body, stop) if self.call_closing else -1
        return closing + len(self.call_closing) if closing >= 0 else stop

    def _thinking(self, text: str, tools: Tools | None, prompt_end: str | None) -> slice | None:
        """Returns the span of the thinking, with its closing tag; None if there is none or it has
        no end. Without `prompt_end` the prompt may have opened it: then text before a closing tag
        is thinking if it holds no call and no opening tag."""
        opening, closing = self.thinking_tags
        begin = skip_space(text, 0)
        has_opening = text.startswith(opening, begin)
        start = begin + len(opening) if has_opening else 0
        is_open = has_opening or (prompt_end or "").rstrip().endswith(opening)
        end = text.find(closing, start)
        if end < 0 or not (is_open or prompt_end is None):
            return None
        if not is_open and opening in text[:end]:
            return None
        # A closing tag inside a call is part of its arguments: look for one after the call.
        for call in self._find_calls(text, start, tools):
            if end < call.start:
                break
            if not is_open:
                return None
            # A call that was only begun in the thinking may seem to end with a later, real one.
            if call.calls and end < call.end and not self.call_opening.search(text, end, call.end):
                end = text.find(closing, call.end)
                if end < 0:
                    return None
        return slice(start, end + len(closing))


def extract_calls(
    text: str, spans: Iterable[CallSpan], id_form: re.Pattern[str] | None = None
) -> ParsedReply:
    """Returns the reply with its calls extracted. Malformed calls stay in the content."""
    content: list[str] = []
    calls: list[Call] = []
    malformed: list[str] = []
    position = 0
    for span in spans:
        content.append(text[position : span.start])
        if span.calls is None:
            malformed.append(text[span.start : span.end])
            content.append(malformed[-1])
        calls += span.calls or ()
        position = span.end
    whole = "".join(content) + text[position:]
    # A reply without calls stays as the model wrote it; space around calls is dropped.
    return ParsedReply(
        content=whole.strip() if calls else whole,
        tool_calls=with_ids(calls, id_form),
        malformed=tuple(malformed),
    )


def with_ids(calls: Iterable[Call], id_form: re.Pattern[str] | None = None) -> tuple[ToolCall, ...]:
    """Returns the calls with ids. The model's id is kept if it has the family's form and no earlier
    call of the reply has it."""
    result: list[ToolCall] = []
    ids: set[str] = set()
    for number, (name, arguments, call_id) in enumerate(calls):
        if call_id and call_id not in ids and id_form and id_form.fullmatch(call_id):
            ids.add(call_id)
            result.append(ToolCall(call_id, name, arguments, has_sampled_id=True))
        else:
            result.append(ToolCall(f"call_{number}", name, arguments))
    return tuple(result)


def read_json(text: str, start: int) -> tuple[Any, int] | None:
    """Returns the JSON value at `start` (after white space) and its end, or None if there is
    none."""
    try:
        value, end = _DECODER.raw_decode(text, skip_space(text, start))
    except (ValueError, RecursionError):
        return None
    return (value, end) if _depth_fits(value) else None


def read_arguments(text: str, start: int) -> tuple[dict[str, Any], int] | None:
    """Returns the arguments at `start`, written as JSON, and their end. Without JSON there the call
    has no arguments, and its closing must follow."""
    value = read_json(text, start)
    if not value:
        return {}, skip_space(text, start)
    arguments = as_arguments(value[0])
    return None if arguments is None else (arguments, value[1])


def as_arguments(value: Any) -> dict[str, Any] | None:
    """Returns a call's arguments. Models write those of a tool without parameters as an empty
    object, null or an empty text, and some write objects as JSON text; anything else is None."""
    if isinstance(value, str):
        if not value.strip():
            return {}
        parsed = read_json(value, 0)
        if not parsed or skip_space(value, parsed[1]) < len(value):
            return None
        value = parsed[0]
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def json_call(value: Any, keys: Sequence[str] = ("arguments",)) -> Call | None:
    """Returns the call that an object with `name` and one of `keys` makes; a name alone is a call
    without arguments. Returns None for any other field, which would be lost."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    others = [key for key in value if key not in ("name", "type", "id")]
    if len(others) > 1 or not set(others) <= set(keys):
        return None
    arguments = as_arguments(value[others[0]]) if others else {}
    call_id = value.get("id")
    if not isinstance(call_id, str):
        call_id = None
    return None if arguments is None else Call(value["name"], arguments, call_id)


def read_call_list(text: str, start: int) -> tuple[list[Call], int] | None:
    """Returns the calls in the JSON list at `start` and its end; None unless all are calls."""
    value = read_json(text, start)
    if not value or not isinstance(value[0], list):
        return None
    calls = [call for call in map(json_call, value[0]) if call]
    return (calls, value[1]) if calls and len(calls) == len(value[0]) else None


def offered_functions(tools: Tools | None) -> dict[str, Mapping[str, Any]]:
    """Returns the functions of the tools by their names."""
    functions = [tool.get("function", tool) for tool in tools or ()]
    return {
        str(function.get("name")): function
        for function in functions
        if isinstance(function, Mapping)
    }


def skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match
    return match.end()


_SPACE = re.compile(r"\s*")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"JSON cannot write the number {number[:20]}")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is repeated: one of its values would be lost")
    return values


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite, object_pairs_hook=_unique)


def _depth_fits(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        items: list[Any] = []
        for parent in level:
            if isinstance(parent, dict):
                items += parent.values()
            elif isinstance(parent, list):
                items += parent
        level = items
        if not level:
            return True
    return False
