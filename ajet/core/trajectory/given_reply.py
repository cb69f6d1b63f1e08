"""Writes a given assistant message as the model's own reply: token ids, with the end of its turn.

    {"content": "4", …}   ->   text after the generation prompt   "4<|im_end|>"   ->   ids

The text is what the chat template writes for the message at the end of its conversation, so tool
calls are in the model's own format, up to the special token that ends a reply. It is tokenized
apart from the prompt, as a sampled reply is.

Not covered: templates whose generation prompt is not how they begin a reply in the history
(DeepSeek-R1, which begins with `<think>` and drops the thinking afterwards); a message must then
come with its token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ajet.core.error_codes import Code
from ajet.core.errors import DataError

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate, Message, Tools


def given_reply_ids(
    template: ChatTemplate, messages: Sequence[Message], tools: Tools | None, reply: Message
) -> tuple[int, ...]:
    """Returns the ids of `reply` to these messages. Raises DataError if the template does not say
    what they are."""
    prompt = template.render_marked(messages, tools)
    whole = template.render_marked([*messages, reply], tools, add_generation_prompt=False)
    if not whole.startswith(prompt):
        raise DataError(
            "the chat template does not write an assistant message as its generation prompt begins "
            "one: give the reply's token_ids, or another ajet.model.chat_template",
            code=Code.ROW_NOT_TRAINABLE,
        )
    end = _end_of_turn(template, whole, len(prompt))
    if end is None:
        raise DataError(
            "the chat template writes no token that ends a reply after an assistant message: give "
            "the reply's token_ids, or another ajet.model.chat_template",
            code=Code.ROW_NOT_TRAINABLE,
        )
    return tuple(template.encode(whole[len(prompt) : end]))


def _end_of_turn(template: ChatTemplate, marked_text: str, start: int) -> int | None:
    """Returns where the last special token ends that ends a reply; None if there is none."""
    end = None
    control = template.find_control(marked_text, start)
    while control is not None:
        position, token_id = control
        if token_id in template.stop_token_ids:
            end = position + len(template.token_text(token_id))
        control = template.find_control(marked_text, position + 1)
    return end
