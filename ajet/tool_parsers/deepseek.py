"""Parses tool calls as DeepSeek's models write them, bare (V3.1) or in a Markdown fence (V3, R1).

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>sub<｜tool▁sep｜>{"b": 3}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import re

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import Call, ThinkingParser, read_arguments

_CALLS, _CALL, _SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_CALL_END, _CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
# The name excludes braces and `<`, so that it ends before arguments or another token.
_FENCED = re.compile(rf"\s*function{_SEP}([^\n{{}}<]+)\n\s*```(?:json)?\s*")
_BARE = re.compile(rf"\s*+([^\n{{}}<]+){_SEP}")
_FENCE = re.compile(r"\s*```")
_CLOSING = re.compile(rf"\s*{_CALL_END}(?:\s*{_CALLS_END})?")


class DeepSeekParser(ThinkingParser):
    """`fenced` is the older form of forced calls. Both forms may occur in one reply. The calls
    before a malformed one stay calls, and the outer pair of tokens may be missing. V3.2's calls in
    XML are not parsed."""

    special_tokens = (_CALLS, _CALL, _SEP, _CALL_END, _CALLS_END)
    call_opening = re.compile(rf"{_CALLS}\s*(?:{_CALL})?|{_CALL}")
    call_closing = _CALL_END

    def __init__(self, splits_thinking: bool = True, fenced: bool = True) -> None:
        super().__init__(splits_thinking)
        self._fenced = fenced
        self.argument_frame = ("", ("\n```" if fenced else "") + _CALL_END + _CALLS_END)

    @classmethod
    def from_template(cls, template: str) -> DeepSeekParser:
        return cls(splits_thinking=cls.thinking_tags.closing in template, fenced="```" in template)

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        fenced = _FENCED.match(text, body)
        head = fenced or _BARE.match(text, body)
        arguments = read_arguments(text, head.end()) if head else None
        if not head or not arguments or not head[1].strip():
            return None
        fence = _FENCE.match(text, arguments[1]) if fenced else None
        if fenced and not fence:
            return None
        closing = _CLOSING.match(text, fence.end() if fence else arguments[1])
        return ([Call(head[1].strip(), arguments[0])], closing.end()) if closing else None

    def opening(self, name: str | None) -> str:
        if name is None:
            return _CALLS + _CALL
        if self._fenced:
            return f"{_CALLS}{_CALL}function{_SEP}{name}\n```json\n"
        return f"{_CALLS}{_CALL}{name}{_SEP}"
