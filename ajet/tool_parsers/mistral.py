"""Parses tool calls as Mistral's models write them, in the older and the newer form.

    [TOOL_CALLS] [{"name": "add", "arguments": {"a": 2}, "id": "abc123def"}]
    [TOOL_CALLS]add[ARGS]{"a": 2}[TOOL_CALLS]sub[CALL_ID]abc123def[ARGS]{"b": 3}

`[ARGS]` may be missing before the brace. A list counts as a whole: with one entry that is no call
all of it stays content. Arguments may be a JSON text that holds an object, as older models write.
Thinking stands between [THINK] and [/THINK] where the template knows these, else in <think> tags.

Not covered: the ids that a model gives its calls; the recorder gives its own.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import (
    THINK,
    Calls,
    Tags,
    extract_calls,
    read_call_list,
    read_object,
    skip_space,
    split_thinking,
)

_OPEN, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_THINK = Tags("[THINK]", "[/THINK]")
_OPENING = re.compile(re.escape(_OPEN))
_NAME = re.compile(r"\s*([\w.:/-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?")


class MistralParser:
    """Parses replies of Mistral's models. `thinking` holds the tags of thinking; with None it stays
    in the content. `names_first` is the newer form of forced calls."""

    special_tokens = (_OPEN, _ARGS, _CALL_ID, *_THINK)

    def __init__(self, thinking: Tags | None = None, names_first: bool = True) -> None:
        self._thinking = thinking
        self._names_first = names_first

    @classmethod
    def from_template(cls, template: str) -> MistralParser:
        known = [tags for tags in (_THINK, THINK) if tags.closing in template]
        return cls(thinking=known[0] if known else None, names_first=_ARGS in template)

    def parse(self, text: str, tools: Tools | None = None) -> ParsedReply:
        reasoning, rest = split_thinking(text, self._thinking) if self._thinking else (None, text)
        return replace(extract_calls(rest, _OPENING, _read), reasoning=reasoning)

    def opening(self, name: str | None) -> str:
        if name is None:
            return _OPEN
        if self._names_first:
            return f"{_OPEN}{name}{_ARGS}"
        # It ends at a token boundary: tokenizers join the space before an object with its brace.
        return f'{_OPEN}[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


def _read(text: str, body: int) -> tuple[Calls, int] | None:
    if text.startswith("[", skip_space(text, body)):
        return read_call_list(text, body)
    name = _NAME.match(text, body)
    found = read_object(text, name.end()) if name else None
    return ([(name[1], found[0])], found[1]) if name and found else None
