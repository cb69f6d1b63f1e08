"""Splits the thinking from a reply before a family's parser reads the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar, Self

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import THINK, Tags, split_thinking


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
