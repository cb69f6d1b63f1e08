"""Parses tool calls as Mistral's models write them, in the older and the newer form.

[TOOL_CALLS] [{"name": "add", "arguments": {"a": 2}, "id": "abc123def"}]
[TOOL_CALLS]add[ARGS]{"a": 2}[TOOL_CALLS]sub[CALL_ID]abc123def[ARGS]{"b": 3}
"""

from __future__ import annotations

import json
import re

from ajet.core.inference.chat_template import SHORT_ID, Tools
from ajet.tool_parsers.scanning import (
    THINK,
    Call,
    Tags,
    ThinkingParser,
    as_arguments,
    read_call_list,
    read_json,
    skip_space,
)

_OPEN, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
MISTRAL_THINK = Tags("[THINK]", "[/THINK]")
_NAME = re.compile(r"\s*([\w.:/-]+)(?:\[CALL_ID\](\w*))?(?:\[ARGS\])?")

_UNMARKED = re.compile(r"\s*[\w.:/-]+(?:\[CALL_ID\]\w*)?\[ARGS\]")
"""A further call without [TOOL_CALLS] before it."""


class MistralParser(ThinkingParser):
    """`thinking` holds the tags of thinking; with None it stays in the content. `names_first` is
    the newer form of forced calls. If one entry of a list is not a call, all of it stays content.
    The template refuses ids of other forms than nine letters and digits. The newer form without
    arguments is malformed: no token closes a call, so the reply may have been cut there."""

    special_tokens = (_OPEN, _ARGS, _CALL_ID, *MISTRAL_THINK)
    call_opening = re.compile(re.escape(_OPEN))
    id_form = SHORT_ID

    def __init__(self, thinking: Tags | None = None, names_first: bool = True) -> None:
        super().__init__(splits_thinking=thinking is not None)
        self.thinking_tags = thinking or MISTRAL_THINK
        self._names_first = names_first
        self.argument_frame = ("", "") if names_first else (" ", "}]")

    @classmethod
    def from_template(cls, template: str) -> MistralParser:
        tags = [tags for tags in (MISTRAL_THINK, THINK) if tags.closing in template]
        return cls(thinking=tags[0] if tags else None, names_first=_ARGS in template)

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        if text.startswith("[", skip_space(text, body)):
            return read_call_list(text, body)
        name = _NAME.match(text, body)
        value = read_json(text, name.end()) if name else None
        arguments = as_arguments(value[0]) if value else None
        if not name or not value or arguments is None or _UNMARKED.match(text, value[1]):
            return None
        return [Call(name[1], arguments, name[2])], value[1]

    def opening(self, name: str | None) -> str:
        if name is None:
            return _OPEN
        if self._names_first:
            return f"{_OPEN}{name}{_ARGS}"
        # It ends at a token boundary: tokenizers join the space before an object with its brace.
        return f'{_OPEN}[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'
