"""A recorded conversation, and the task that is made from it. The question is the user's last
message; the messages before it are history. Of the messages after it only the last answer is used:
the agent in training makes its calls anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ajet.core.errors import DataError
from ajet.core.images.store import num_images
from ajet.core.task.row_messages import row_messages

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in OpenAI's form up to the final answer, which is text.

    `scores` and `labels` are the ratings of people or judges, by the name of the criterion."""

    source_id: str
    messages: list[Message]
    answer: str
    model: str | None = None
    ended: datetime | None = None
    scores: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def query(self) -> str:
        """The text of the user's last message; every conversation has one."""
        return text_of(self.messages[_last_user(self.messages)])

    @property
    def history(self) -> list[Message]:
        return self.messages[: _last_user(self.messages)]

    @property
    def tool_names(self) -> list[str]:
        calls = [call for message in self.messages for call in message.get("tool_calls") or ()]
        return [str(call.get("function", {}).get("name")) for call in calls]

    @property
    def task_id(self) -> str:
        """A hash of the messages, so that a conversation has the same id wherever it is read."""
        content = json.dumps([self.history, self.query, self.answer], sort_keys=True)
        return f"trace-{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def row(self) -> dict[str, Any]:
        """Returns the task as a row, which `jsonl_dataset_file` can read too."""
        return {
            "task_id": self.task_id,
            "main_query": self.query,
            "init_messages": self.history,
            "answer": self.answer,
            "source_id": self.source_id,
            "model": self.model,
            "ended": self.ended.isoformat() if self.ended else None,
            "scores": self.scores,
            "labels": self.labels,
        }


def conversation_of(source_id: str, messages: list[Message], **fields: Any) -> Conversation | None:
    """Makes a conversation from messages that end with the answer. Returns None if there is no
    question or no answer, if it shows an image, or if a row cannot hold a message before the
    question."""
    if not messages or messages[-1].get("role") != "assistant" or messages[-1].get("tool_calls"):
        return None
    if any(map(num_images, messages)):
        return None
    answer, before = text_of(messages[-1]).strip(), messages[:-1]
    if not answer or _last_user(before) < 0 or not text_of(before[_last_user(before)]).strip():
        return None
    conversation = Conversation(source_id, before, answer, **fields)
    if conversation.history:
        # A row may hold fewer kinds of messages than a trace.
        try:
            row_messages(conversation.history, source_id)
        except DataError:
            return None
    return conversation


def text_of(message: Message) -> str:
    """Returns the content of a message, or the joined text of its blocks."""
    content = message.get("content")
    if isinstance(content, list):
        blocks = [block for block in content if isinstance(block, dict)]
        return "".join(str(block["text"]) for block in blocks if block.get("text"))
    return content if isinstance(content, str) else ""


def _last_user(messages: list[Message]) -> int:
    """Returns the index of the user's last message, or -1 if there is none."""
    positions = [at for at, message in enumerate(messages) if message.get("role") == "user"]
    return positions[-1] if positions else -1
