"""Finds the message to which a position in a prompt belongs.

    <|im_start|>system⏎You are…<|im_end|>⏎<|im_start|>user⏎2+2?<|im_end|>⏎<|im_start|>assistant⏎
    '------------- message 0 ------------''---------- message 1 --------''------- the end -------

The messages' texts are searched in the prompt's text, each one after the end of the previous one. A
message that has only tool calls counts as part of the message that follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ajet.core.inference.chat_template import normalised
from ajet.read.episode_reader import TurnRecord

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate


def describe_position(turn: TurnRecord, position: int, template: ChatTemplate) -> str:
    """Returns the part of the recorded prompt at this position, such as ``message 3 (tool)``."""
    if not turn.messages:
        return "the ids that the workflow gave"
    ids = turn.prompt_ids.tolist()
    text, at = template.text_of(ids), len(template.text_of(ids[:position]))
    end = 0
    for number, message in enumerate(turn.messages):
        content = str(normalised(message)["content"]).strip()
        # Searching from the end of the previous message keeps the order of equal messages.
        start = text.find(content, end) if content else -1
        if start < 0:
            continue
        if at < start and _offers(text[end:start], turn.tools):
            return "the tools"
        if at <= start + len(content):
            return f"message {number} ({message.get('role')})"
        end = start + len(content)
    return "the tools" if _offers(text[end:], turn.tools) else "what follows the last message"


def _offers(gap: str, tools: list[dict[str, Any]] | None) -> bool:
    names = [str(tool.get("function", tool).get("name")) for tool in tools or ()]
    return bool(names) and all(name in gap for name in names)
