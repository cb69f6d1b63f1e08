"""Parses tool calls of Gemma 4 and FunctionGemma: objects whose strings stand between tokens.

<|tool_call>call:add{a:2,s:<|"|>two<|"|>,l:[1,null],o:{k:true}}<tool_call|>
<start_function_call>call:add{a:2,s:<escape>two<escape>}<end_function_call>
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ajet.core.inference.chat_template import Tools
from ajet.tool_parsers.scanning import MAX_DEPTH, Call, Tags, ThinkingParser, read_json, skip_space


class Tokens(NamedTuple):
    opening: str
    closing: str
    quote: str


GEMMA_4 = Tokens("<|tool_call>", "<tool_call|>", '<|"|>')
FUNCTION_GEMMA = Tokens("<start_function_call>", "<end_function_call>", "<escape>")
_CHANNEL, _CHANNEL_END = "<|channel>", "<channel|>"
_THOUGHT = Tags(f"{_CHANNEL}thought", _CHANNEL_END)
_NAME = re.compile(r"\s*call:([^\s<>{}]+)")
_KEY = re.compile(r'([^\s:,{}\[\]<"][^:,{}\[\]<"\n]*):')
_SCALAR = re.compile(r"-?\d|true\b|false\b|null\b")
_NONE = re.compile(r"None\b")


class GemmaParser(ThinkingParser):
    """Reads keys without quotation marks or between string tokens, and numbers, `true`, `false` and
    `null` (`None` in Gemma 4's first templates) as in JSON; a string may hold anything but its
    token. A call without arguments may lack the braces. Source: the chat template of Gemma 4 and
    Google's documentation of both. Gemma 3 and older have no form for calls."""

    thinking_tags = _THOUGHT

    def __init__(self, tokens: Tokens = GEMMA_4, splits_thinking: bool = True) -> None:
        self._tokens = tokens
        super().__init__(splits_thinking)
        self.call_opening = re.compile(re.escape(tokens.opening))
        self.call_closing = tokens.closing
        self.special_tokens = (*tokens, _CHANNEL, _CHANNEL_END)

    @classmethod
    def from_template(cls, template: str) -> GemmaParser:
        tokens = FUNCTION_GEMMA if FUNCTION_GEMMA.opening in template else GEMMA_4
        return cls(tokens, splits_thinking=_CHANNEL_END in template)

    def opening(self, name: str | None) -> str:
        # Without a name it ends at a token boundary: the colon may be in one token with the name.
        begin = f"{self._tokens.opening}call"
        return begin if name is None else f"{begin}:{name}{{"

    def _read(self, text: str, body: int, tools: Tools | None) -> tuple[list[Call], int] | None:
        name = _NAME.match(text, body)
        if not name:
            return None
        arguments, end = {}, name.end()
        if text.startswith("{", end):
            try:
                arguments, end = _ValueReader(text, self._tokens.quote).read_object(end, depth=1)
            except _ParseError:
                return None
        end = skip_space(text, end)
        if not text.startswith(self.call_closing, end):
            return None
        return [Call(name[1], arguments)], end + len(self.call_closing)


class _ParseError(ValueError):
    """The text at a position is not a value in the family's form."""


class _ValueReader:
    """Reads values in a text; each method returns the value at a position and its end."""

    def __init__(self, text: str, quote: str) -> None:
        self._text = text
        self._quote = quote

    def read_object(self, start: int, depth: int) -> tuple[dict[str, Any], int]:
        entries: dict[str, Any] = {}

        def entry(position: int) -> int:
            key, position = self._read_key(position)
            if key in entries:
                raise _ParseError
            entries[key], position = self._read(position, depth + 1)
            return position

        return entries, self._read_entries(start, "{}", entry)

    def _read_list(self, start: int, depth: int) -> tuple[list[Any], int]:
        entries: list[Any] = []

        def entry(position: int) -> int:
            value, position = self._read(position, depth + 1)
            entries.append(value)
            return position

        return entries, self._read_entries(start, "[]", entry)

    def _read_entries(self, start: int, brackets: str, entry: Callable[[int], int]) -> int:
        """Reads the entries between the brackets at `start`, each with `entry`, and returns the
        position after the closing bracket."""
        opening, closing = brackets
        if not self._text.startswith(opening, start):
            raise _ParseError
        position = skip_space(self._text, start + 1)
        while not self._text.startswith(closing, position):
            position = skip_space(self._text, entry(position))
            if self._text.startswith(",", position):
                position = skip_space(self._text, position + 1)
                if self._text.startswith(closing, position):
                    raise _ParseError
            elif not self._text.startswith(closing, position):
                raise _ParseError
        return position + 1

    def _read(self, start: int, depth: int) -> tuple[Any, int]:
        if depth > MAX_DEPTH:
            raise _ParseError
        position = skip_space(self._text, start)
        if self._text.startswith(self._quote, position):
            return self._read_string(position)
        if self._text.startswith("{", position):
            return self.read_object(position, depth)
        if self._text.startswith("[", position):
            return self._read_list(position, depth)
        if none := _NONE.match(self._text, position):
            return None, none.end()
        value = read_json(self._text, position) if _SCALAR.match(self._text, position) else None
        if not value:
            raise _ParseError
        return value

    def _read_string(self, start: int) -> tuple[str, int]:
        begin = start + len(self._quote)
        end = self._text.find(self._quote, begin)
        if end < 0:
            raise _ParseError
        return self._text[begin:end], end + len(self._quote)

    def _read_key(self, start: int) -> tuple[str, int]:
        if self._text.startswith(self._quote, start):
            key, end = self._read_string(start)
            end = skip_space(self._text, end)
            if not self._text.startswith(":", end):
                raise _ParseError
            return key, end + 1
        match = _KEY.match(self._text, start)
        if not match:
            raise _ParseError
        return match[1].rstrip(), match.end()
