"""Defines one problem for the agent."""

from dataclasses import dataclass, field
from typing import Any

ANSWER_FIELDS = (
    "answer",
    "expected_answer",
    "ground_truth",
    "expected",
    "solution",
    "target",
    "label",
)
"""Usual names of a row's field with the right answer, the likeliest first."""


@dataclass(frozen=True, slots=True)
class Task:
    """Holds what a reader makes of one row.

    `main_query` is the question as text; `init_messages` are chat messages that precede the
    agent's (may be empty); `metadata` is the whole row, so a judge finds ``answer`` there. A
    question with images has them in `query_parts`, the parts of its content, and as ``<image>`` in
    `main_query`. The user's own reader may leave `task_id` out: its tasks are numbered.
    """

    task_id: str = ""
    main_query: str = ""
    init_messages: list[dict[str, Any]] = field(default_factory=list)
    env_type: str = "no_env"
    metadata: dict[str, Any] = field(default_factory=dict)
    query_parts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def query_content(self) -> str | list[dict[str, Any]]:
        """Returns the question as the content of a message: text, or parts where it has images."""
        return self.query_parts or self.main_query
