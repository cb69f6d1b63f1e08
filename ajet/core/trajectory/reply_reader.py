"""Turns sampled ids into text, tool calls and the message that the agent gets.

The recorder reads a reply when it was sampled. `ajet inspect audit` reads it again, from the
recorded ids and the turn's notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.core.inference.chat_template import MARK, ChatTemplate, clean_text
from ajet.core.inference.endpoint import Completion, cut_at_stop
from ajet.core.inference.tool_parser import ParsedReply, ToolParser
from ajet.core.trajectory.turn import TurnNotes

PROMPT_END_TOKENS = 32
"""The prompt's last tokens, which hold a tag that opens thinking even if it is spelled in bytes."""


@dataclass(frozen=True, slots=True)
class DecodedReply:
    """Holds a reply as text and as a message in OpenAI's form. `text` begins with the opening of a
    forced call, if there is one."""

    text: str
    parsed: ParsedReply
    message: dict[str, Any]


class ReplyReader:
    """Reads replies of one model, with its chat template and its tool parser."""

    def __init__(self, template: ChatTemplate, parser: ToolParser) -> None:
        self._template = template
        self._parser = parser

    def truncate_at_stop(
        self, completion: Completion, stops: Sequence[str]
    ) -> tuple[Completion, str | None]:
        """Returns the completion up to its first stop string, and that string or None. Special
        tokens count by their spelling, as in the engine."""
        cut = cut_at_stop(completion, stops, self._template.text_of) if stops else None
        return (completion, None) if cut is None else cut

    def read(
        self,
        turn: int,
        completion: Completion,
        tools: Sequence[Mapping[str, Any]] | None,
        notes: TurnNotes,
    ) -> DecodedReply:
        """Reads the reply of turn number `turn` (for the ids of its calls), with the `opening`,
        `stopped_at`, `calls_are_text` and `one_call` of its notes. Without tools, calls stay text
        too."""
        marked = self._text(completion, notes.stopped_at, self._parser.special_tokens)
        marked = notes.opening + marked
        # The opening is at the end of the prompt's ids and part of the text here. The parser needs
        # the text before it: a template may open a block of thinking there.
        prompt_end = None
        if ids := completion.prompt_ids:
            end = len(ids) - (len(self._template.encode(notes.opening)) if notes.opening else 0)
            prompt_end = self._template.text_of(ids[max(0, end - PROMPT_END_TOKENS) : end])
        parsed = self._parser.parse(marked, tools, prompt_end).without_marks()
        text = clean_text(marked)
        if parsed.tool_calls and (not tools or notes.calls_are_text):
            return DecodedReply(text, parsed, {"role": "assistant", "content": text})
        message = assistant_message(parsed, turn, parallel=not notes.one_call)
        return DecodedReply(text, parsed, message)

    def plain_text(self, completion: Completion, stopped_at: str | None = None) -> str:
        """Returns the reply's text without special tokens."""
        return self._text(completion, stopped_at, ())

    def _text(self, completion: Completion, stopped_at: str | None, keep: Sequence[str]) -> str:
        """Decodes the reply up to its stop string, without special tokens except those in
        `keep`. Plain text that spells one of them has marks in it."""
        ids = completion.token_ids
        if completion.finish_reason == "stop" and ids and ids[-1] in self._template.stop_token_ids:
            ids = ids if self._template.token_text(ids[-1]) in keep else ids[:-1]
        text = self._template.decode(ids, keep)
        if stopped_at is None:
            return text
        # A stop string that spells a special token has marks in it, too.
        spelled = f"{MARK}*".join(map(re.escape, stopped_at))
        return re.split(spelled, text, maxsplit=1)[0]


def assistant_message(parsed: ParsedReply, turn: int, *, parallel: bool = True) -> dict[str, Any]:
    """Returns the reply in OpenAI's form; without `parallel` it has only the first tool call.

    A call keeps an id that the model wrote, because its result will cite it. The others are
    ``call_<turn>_<order>``: a resumed or replayed run must get the same ids.
    """
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    calls = parsed.tool_calls if parallel else parsed.tool_calls[:1]
    for order, call in enumerate(calls):
        call_id = call.id if call.has_sampled_id else f"call_{turn:04d}_{order}"
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        written = {"id": call_id, "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(written)
    return message
