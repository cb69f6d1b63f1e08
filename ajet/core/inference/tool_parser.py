"""The interface of tool parsers: they split a reply's text into content, tool calls and reasoning.

text --ToolParser.parse--> ParsedReply --without_marks--> what the agent gets
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ajet.core.inference.chat_template import Tools, clean_text


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. `id` is unique within the reply only; `has_sampled_id`: the model wrote it."""

    id: str
    name: str
    arguments: dict[str, Any]
    has_sampled_id: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class ParsedReply:
    """A parsed reply. Every text in `malformed` is also in `content`. `other_form` names a parser
    that would have found calls of offered tools where this one found none."""

    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str | None = None
    malformed: tuple[str, ...] = ()
    other_form: str | None = None

    def without_marks(self) -> ParsedReply:
        """Returns the reply for the agent: without the marks of `ChatTemplate.decode`, and with
        lone surrogates replaced."""
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
        """The special tokens that are part of the family's syntax, around a call for example.
        `ChatTemplate.decode(ids, keep=parser.special_tokens)` keeps them in the text. If the model
        spelled one with ordinary tokens, `decode` breaks it up with a mark, so that it stays
        content:

            ids [TOOL_CALLS] add { }       text "[TOOL_CALLS]add{}"      a call
            ids [ TOOL _CALLS ] add { }    text "[⟦TOOL_CALLS]add{}"     content

        Tags that are ordinary text for the tokenizer (`<tool_call>`, `<think>`) always count.
        """
        ...

    @property
    def argument_frame(self) -> tuple[str, str] | None:
        """The texts between `opening(name)` and the arguments of a call, and after them up to the
        end of the call, in a family that writes arguments as JSON; else None."""
        ...

    def parse(
        self, text: str, tools: Tools | None = None, prompt_end: str | None = None
    ) -> ParsedReply:
        """Parses a reply. Never raises: what is not a call is content. `tools` are those offered:
        some families write arguments without types, which their schemas have. `prompt_end` is the
        text before the reply, if known: it may have opened thinking."""
        ...

    def opening(self, name: str | None) -> str:
        """Returns a beginning that forces the reply to be a call (of the tool `name`). Raises
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
