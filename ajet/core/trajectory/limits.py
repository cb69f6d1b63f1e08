"""Limits of an episode, what cut it short, and the errors of calls after its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.core.config.rollout import Check


class Limit(StrEnum):
    """A limit that can end an episode. The value is its key in the config, if it has one."""

    MAX_PROMPT_LENGTH = "ajet.data.max_prompt_length"
    MAX_RESPONSE_LENGTH = "ajet.data.max_response_length"
    MAX_MODEL_LEN = "ajet.rollout.max_model_len"
    MAX_RESPONSE_LENGTH_IN_ONE_TURN = "ajet.rollout.max_response_length_in_one_turn"
    MAX_STEPS = "ajet.rollout.multi_turn.max_steps"
    MALFORMED_REPLY = "ajet.rollout.compute_madness_checklist"
    HARNESS = "ajet.harness.limits"
    ENGINE = "engine context"  # the inference engine refused a prompt that the run's limits allow
    WORKFLOW = "workflow limit"  # ModelTuner.truncate, .tighten_limits, max_tokens of a request
    UNKNOWN = "unknown limit"  # records of releases that stored only the line

    @property
    def text(self) -> str:
        return f"by {LIMIT_NAMES.get(self.metric, self)}"

    @property
    def metric(self) -> str:
        """Returns the last part of the metric that counts its episodes (`episodes/cut_…`)."""
        return self.value.rpartition(".")[2].replace(" ", "_")


LIMIT_NAMES = {Limit.WORKFLOW.metric: "the agent's own max_tokens or limit"}
"""What people read in place of a metric's last part that is no key of the config."""


@dataclass(frozen=True, slots=True)
class Truncation:
    """Holds the limit that ended an episode, and one line with the numbers."""

    limit: Limit
    detail: str

    def __str__(self) -> str:
        return self.detail


class EpisodeTruncated(Exception):
    """A limit of tokens or calls is reached: the episode may not call the model again."""


class EpisodeClosed(Exception):
    """The model was called after the episode ended (its deadline, or the run was stopped)."""


class EndpointFault(Exception):
    """The endpoint failed, through no fault of agent or task; `__cause__` is its error."""


@dataclass(frozen=True, slots=True)
class MalformedPolicy:
    """Says how a run treats malformed replies of trained agents: `reward` replaces the reward of
    an episode that has one."""

    checks: tuple[Check, ...] = ()
    ends_episode: bool = True
    reward: float = -1.0


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Holds the limits of one episode.

    A timeline (a prompt and everything after it) holds at most `max_prompt_length +
    max_response_length` tokens, tool results included, and never more than `max_model_len`. Only
    the episode's first prompt is limited by `max_prompt_length` alone. `max_steps` counts calls.
    """

    max_prompt_length: int = 3000
    max_response_length: int = 15000
    max_model_len: int = 18000
    max_response_length_in_one_turn: int = 4096
    max_steps: int = 30
    force_disable_toolcalls: bool = False
    malformed: MalformedPolicy = field(default_factory=MalformedPolicy)

    @property
    def max_timeline(self) -> int:
        return min(self.max_model_len, self.max_prompt_length + self.max_response_length)

    @property
    def timeline_limit(self) -> Limit:
        """Returns the limit that `max_timeline` comes from."""
        if self.max_model_len < self.max_prompt_length + self.max_response_length:
            return Limit.MAX_MODEL_LEN
        return Limit.MAX_RESPONSE_LENGTH

    def truncation_by(self, turn: int, prompt_length: int) -> Truncation | None:
        """Returns the limit that leaves no token for a reply to such a prompt, or None."""
        if turn == 0 and prompt_length > self.max_prompt_length:
            return Truncation(
                Limit.MAX_PROMPT_LENGTH,
                f"the first prompt has {prompt_length} tokens; "
                f"max_prompt_length is {self.max_prompt_length}",
            )
        if prompt_length >= self.max_timeline:
            return Truncation(
                self.timeline_limit,
                f"turn {turn}'s prompt has {prompt_length} tokens; "
                f"an episode may hold {self.max_timeline}",
            )
        return None

    def reply_limit(self, prompt_length: int) -> Limit:
        """Returns the limit that a reply to a prompt of this length reaches first."""
        if self.max_timeline - prompt_length < self.max_response_length_in_one_turn:
            return self.timeline_limit
        return Limit.MAX_RESPONSE_LENGTH_IN_ONE_TURN

    def max_completion_tokens(self, prompt_length: int) -> int:
        """Returns how many tokens the reply to a prompt of this length may have."""
        return min(self.max_timeline - prompt_length, self.max_response_length_in_one_turn)
