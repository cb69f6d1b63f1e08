"""Parses tool calls as Llama 3.1, 3.2 and 3.3 write them: the reply is one JSON object.

<|python_tag|>{"name": "add", "parameters": {"a": 2, "b": 3}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

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

_TAG = "<|python_tag|>"
_ARGUMENTS = ("parameters", "arguments")
_LOOKS_LIKE_A_CALL = re.compile(r'\s*\{\s*"(name|parameters)"')


class Llama3Parser(ThinkingParser):
    """Without the tag the whole reply must be the call, because an object within other text may be
    an answer; before the tag there may be content. `arguments` may replace `parameters`. A name
    alone is a call after the tag, or if it is that of an offered tool. Several calls in one reply
    stay content (the family's template refuses to write them), as does code after the tag."""

    argument_frame = (" ", "}")
    special_tokens = (_TAG,)
    call_opening = re.compile(re.escape(_TAG))

    def __init__(self, splits_thinking: bool = False) -> None:
        super().__init__(splits_thinking)

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        return _read_whole(text, body, may_be_bare=lambda name: True)

    def _find_calls(self, text: str, position: int, tools: Tools | None) -> Iterator[CallSpan]:
        """Yields one span: all of the text, or the text from a tag to the end."""
        names = offered_functions(tools).keys()
        whole = _read_whole(text, position, may_be_bare=names.__contains__)
        if whole:
            yield CallSpan(position, whole[1], whole[0])
            return
        tag = self.call_opening.search(text, position)
        if tag:  # the arguments may spell the tag, so the first one decides
            calls = self._read(text, tag.end(), tools)
            yield CallSpan(tag.start(), len(text), calls[0] if calls else None)
        elif _LOOKS_LIKE_A_CALL.match(text, position):
            yield CallSpan(position, len(text), None)

    def opening(self, name: str | None) -> str:
        # Both end at a token boundary: tokenizers join the space with the text after it.
        if name is None:
            return '{"name":'
        return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "parameters":'


def _read_whole(
    text: str, start: int, may_be_bare: Callable[[str], bool]
) -> tuple[list[Call], int] | None:
    """Returns the call if the rest of the text is one (white space aside), else None. A name
    without arguments must be one that `may_be_bare`."""
    value = read_json(text, start)
    call = json_call(value[0], _ARGUMENTS) if value else None
    if not value or not call or skip_space(text, value[1]) < len(text):
        return None
    if value[0].keys().isdisjoint(_ARGUMENTS) and not may_be_bare(call.name):
        return None
    return [call], len(text)
