"""Limits of an episode, and the errors of a call of the model after the episode has ended."""

from dataclasses import dataclass, field

from ajet.core.trajectory.malformed import MalformedPolicy
from ajet.core.trajectory.truncation import Limit, Truncation


class EpisodeTruncated(Exception):
    """Reports that a limit of tokens or turns is reached: the episode may not call the model
    again.
    """


class EpisodeClosed(Exception):
    """Reports a call after the episode is over (deadline, or the run was stopped)."""


class EndpointFault(Exception):
    """Reports a failure of the endpoint, which neither agent nor task caused; `__cause__` is
    the error.
    """


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Holds the limits of one episode.

    A timeline (a prompt and everything after it) holds at most `max_prompt_length +
    max_response_length` tokens, including tool results, and never more than `max_model_len`.
    `max_prompt_length` alone limits the episode's first prompt. `max_steps` counts calls. A reply
    that fails a check of `malformed` may also end the episode.
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
        """Returns which of the limits of a timeline is the smallest."""
        sum_of_lengths = self.max_prompt_length + self.max_response_length
        is_model_len = self.max_model_len < sum_of_lengths
        return Limit.MAX_MODEL_LEN if is_model_len else Limit.MAX_RESPONSE_LENGTH

    def truncation_by(self, turn: int, prompt_length: int) -> Truncation | None:
        """Returns the limit that leaves no token for a reply to such a prompt; None where there is
        room."""
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
        """Returns which limit ends a reply to such a prompt."""
        if self.max_timeline - prompt_length < self.max_response_length_in_one_turn:
            return self.timeline_limit
        return Limit.MAX_RESPONSE_LENGTH_IN_ONE_TURN

    def max_completion_tokens(self, prompt_length: int) -> int:
        """Returns how many tokens the reply to such a prompt may have."""
        return min(self.max_timeline - prompt_length, self.max_response_length_in_one_turn)
