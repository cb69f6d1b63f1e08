"""From sampled ids to what an agent is told of them: the one place where a reply is read.

    completion --truncate_at_stop--> completion, stop string --read--> text, parsed calls, message

The recorder reads a reply when it is sampled, `ajet audit` reads it again from the record: a turn's
notes hold what its ids do not tell (`NOTES`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.core.inference.chat_template import MARK, ChatTemplate, clean_text
from ajet.core.inference.endpoint import Completion
from ajet.core.inference.stop_strings import cut_at_stop
from ajet.core.inference.tool_parser import ParsedReply, ToolParser
from ajet.core.trajectory.assistant_message import assistant_message

NOTES = ("opening", "stopped_at", "calls_are_text", "one_call")
"""The opening of a forced call, the stop string that ended the reply, whether its calls stay text
(``tool_choice: none``; without tools they do), whether the first call alone is shown."""


@dataclass(frozen=True, slots=True)
class DecodedReply:
    """`text` is all that the model wrote and the opening before it; `message` has OpenAI's form."""

    text: str
    parsed: ParsedReply
    message: dict[str, Any]


class ReplyReader:
    """For one model: its words and its way of writing calls."""

    def __init__(self, template: ChatTemplate, parser: ToolParser) -> None:
        self._template = template
        self._parser = parser

    def truncate_at_stop(
        self, completion: Completion, stops: Sequence[str]
    ) -> tuple[Completion, str | None]:
        """The completion up to its first stop string, and which one that is. Special tokens count
        by their spelling, as in the engine."""
        found = cut_at_stop(completion, stops, self._template.text_of) if stops else None
        return (completion, None) if found is None else found

    def read(
        self,
        turn: int,
        completion: Completion,
        tools: Sequence[Mapping[str, Any]] | None,
        notes: Mapping[str, Any],
    ) -> DecodedReply:
        """What turn number `turn` says; `notes` are those in `NOTES`."""
        marked = self._text(completion, notes.get("stopped_at"), self._parser.special_tokens)
        marked = notes.get("opening", "") + marked
        parsed = self._parser.parse(marked, tools).without_marks()
        text = clean_text(marked)
        if parsed.tool_calls and (not tools or notes.get("calls_are_text")):
            return DecodedReply(text, parsed, {"role": "assistant", "content": text})
        message = assistant_message(parsed, turn, parallel=not notes.get("one_call"))
        return DecodedReply(text, parsed, message)

    def plain_text(self, completion: Completion, stopped_at: str | None = None) -> str:
        """The reply as text alone, without special tokens."""
        return self._text(completion, stopped_at, ())

    def _text(self, completion: Completion, stopped_at: str | None, keep: Sequence[str]) -> str:
        """Without the token that ended it and other special ones, but for those in `keep`; up to
        the stop string, wherever marks stand in it."""
        ids = completion.token_ids
        if completion.finish_reason == "stop" and ids and ids[-1] in self._template.stop_token_ids:
            ids = ids if self._template.token_text(ids[-1]) in keep else ids[:-1]
        text = self._template.decode(ids, keep)
        if stopped_at is None:
            return text
        spelled = f"{MARK}*".join(map(re.escape, stopped_at))
        return re.split(spelled, text, maxsplit=1)[0]
