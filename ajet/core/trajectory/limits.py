"""Limits of an episode, and the errors of a call of the model after the episode has ended."""

from dataclasses import dataclass, field

from ajet.core.trajectory.malformed import MalformedPolicy
from ajet.core.trajectory.truncation import Limit, Truncation


class EpisodeTruncated(Exception):
    """A limit of tokens or calls is reached: the episode may not call the model again."""


class EpisodeClosed(Exception):
    """The model was called after the episode ended (its deadline, or the run was stopped)."""


class EndpointFault(Exception):
    """The endpoint failed, through no fault of agent or task; `__cause__` is its error."""


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
