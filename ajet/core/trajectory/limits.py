"""How long an episode may get, and what a call of the model raises when it may not go on."""

import re
from dataclasses import dataclass, field

from ajet.core.trajectory.malformed import MalformedPolicy


class EpisodeTruncated(Exception):
    """A limit of tokens or turns is reached: no further call of the model in this episode."""


class EpisodeClosed(Exception):
    """The episode is over (deadline, or the run was stopped) but its workflow still calls."""


class EndpointFault(Exception):
    """The endpoint failed: neither the agent's fault nor the task's. `__cause__` says how."""


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of one episode.

    A timeline (a prompt and everything after it) holds at most `max_prompt_length +
    max_response_length` tokens, tools' results included, and never more than `max_model_len`.
    `max_prompt_length` alone limits the episode's first prompt. `max_steps` counts calls. A reply
    that `malformed` finds fault with may end the episode as well.
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

    def max_completion_tokens(self, turn: int, prompt_length: int) -> int:
        """How many tokens the reply may have; raises `EpisodeTruncated` when it may have none."""
        if turn == 0 and prompt_length > self.max_prompt_length:
            raise EpisodeTruncated(
                f"the first prompt has {prompt_length} tokens; "
                f"max_prompt_length is {self.max_prompt_length}"
            )
        room = self.max_timeline - prompt_length
        if room < 1:
            raise EpisodeTruncated(
                f"turn {turn}'s prompt has {prompt_length} tokens; "
                f"an episode may hold {self.max_timeline}"
            )
        return min(room, self.max_response_length_in_one_turn)


_REFUSED = re.compile(
    r"the first prompt has \d+ tokens; max_prompt_length is|the episode used its \d+ calls"
    r"|turn \d+('s prompt has \d+ tokens; an episode may hold| filled the episode's"
    r"|'s reply is malformed)"
)


def is_own_limit(truncation: str) -> bool:
    """Whether a limit of the episode cut it: the next call reached no engine."""
    return _REFUSED.match(truncation) is not None
