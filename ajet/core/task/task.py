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
    agent's (may be empty); `metadata` is the whole row, so a judge finds ``answer`` there. The
    user's own reader may leave `task_id` out: its tasks are numbered.
    """

    task_id: str = ""
    main_query: str = ""
    init_messages: list[dict[str, Any]] = field(default_factory=list)
    env_type: str = "no_env"
    metadata: dict[str, Any] = field(default_factory=dict)
