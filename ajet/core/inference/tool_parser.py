"""The interface of tool parsers: a reply's text becomes content, tool calls and reasoning.

    text --ToolParser.parse--> ParsedReply --without_marks--> what the agent gets

Most families write special tokens around a call. A parser lists those that it reads in its
`special_tokens`. `ChatTemplate.decode(ids, keep=parser.special_tokens)` leaves them in the text,
and breaks up with a mark what a model merely spelled in ordinary tokens, so that it is content:

    ids [TOOL_CALLS] add { }       text "[TOOL_CALLS]add{}"      a call
    ids [ TOOL _CALLS ] add { }    text "[⟦TOOL_CALLS]add{}"     content, the mark taken away

Not covered: tags that a tokenizer has as ordinary text (`<tool_call>`, `<think>`), which count
however they were sampled; a tokenizer without the token, where the spelling is all there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ajet.core.inference.chat_template import Tools, clean_text


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of the model. Its `id` is unique within its reply only; `has_sampled_id` says
    that the model wrote it."""

    id: str
    name: str
    arguments: dict[str, Any]
    has_sampled_id: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """The parts of a reply. Every text in `malformed` is also in `content`. `other_form` names the
    parser that would have read calls of offered tools in a reply in which this one found none."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    malformed: tuple[str, ...] = ()
    other_form: str | None = None

    def without_marks(self) -> ParsedReply:
        """Returns the reply as an agent gets it: without the marks of `ChatTemplate.decode`, and
        with replacements for lone surrogates."""
        calls = (
            replace(call, name=clean_text(call.name), arguments=_clean(call.arguments))
            for call in self.tool_calls
        )
        return ParsedReply(
            content=clean_text(self.content),
            tool_calls=tuple(calls),
            reasoning=None if self.reasoning is None else clean_text(self.reasoning),
            malformed=tuple(map(clean_text, self.malformed)),
            other_form=self.other_form,
        )


class ToolParser(Protocol):
    """Reads the tool calls of one model family."""

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """The special tokens that are part of the family's syntax."""
        ...

    def parse(
        self, text: str, tools: Tools | None = None, prompt_end: str | None = None
    ) -> ParsedReply:
        """Takes a reply apart. It never raises: what cannot be read as a call is content. `tools`
        are those offered: some families write arguments without types, which the schemas give.
        `prompt_end` is the text before the reply, if it is known: it may have opened thinking."""
        ...

    def opening(self, name: str | None) -> str:
        """Returns the beginning of a reply that can only become a call (of the tool `name`). Raises
        ValueError if the family has none."""
        ...


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value
