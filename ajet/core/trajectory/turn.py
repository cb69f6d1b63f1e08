"""One call of the model within an episode."""

from dataclasses import dataclass, field
from typing import Any

from ajet.core.inference.endpoint import Completion

ADAPTER = "adapter"
"""The note with the name of the adapter that sampled the turn, where a run has several."""
CUT_BY_AGENT = "cut_by_agent"
"""The note of a reply that was cut by the `max_tokens` that the agent asked for."""
GIVEN = "given"
"""The note of a turn whose reply was given."""
HINTED = "hinted_prompt"
"""The note with the ids of a conversation's first prompt as a teacher is shown it (hint.py)."""
OTHER_FORM = "other_form"
"""The note with the name of the tool parser that would have read calls of offered tools in the
reply, where the run's read none."""
SUMMARY = "summary"
"""The note of a turn whose reply is the summary of a compacted conversation."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Holds one completion and what it was for.

    `messages` and `tools` are what the agent sent (for people to read: training uses only the ids
    in `completion`); `reply` is the assistant message parsed from the completion. `reward` is the
    reward of this turn alone (None: unknown) and `state_key` the state of the environment in which
    it was taken; both are for step-wise credit.
    """

    completion: Completion
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    reply: dict[str, Any]
    agent_name: str = "default"
    target_tag: str = "default"
    trainable: bool = True
    reward: float | None = None
    state_key: str | None = None
    started_s: float = 0.0
    ended_s: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def adapter(self) -> str:
        """Returns the adapter that sampled it; empty where the run has one for all calls."""
        return self.notes.get(ADAPTER, "")

    @property
    def is_given(self) -> bool:
        """Tells whether its reply was given to be learnt, not sampled (`EpisodeRecorder.give`)."""
        return bool(self.notes.get(GIVEN))

    @property
    def is_cut(self) -> bool:
        """Tells whether a limit cut the reply."""
        return self.completion.finish_reason == "length"

    @property
    def other_form(self) -> str | None:
        """Returns the tool parser that would have read calls of offered tools in the reply, where
        the run's read none."""
        return self.notes.get(OTHER_FORM)

    @property
    def num_prompt_tokens(self) -> int:
        """Returns the number of prompt ids, or the number that a chat endpoint reports."""
        return len(self.completion.prompt_ids) or self.notes.get("prompt_tokens", 0)

    @property
    def num_sampled_tokens(self) -> int:
        """Returns the number of sampled ids, or the number that a chat endpoint reports."""
        return len(self.completion.token_ids) or self.notes.get("sampled_tokens", 0)
