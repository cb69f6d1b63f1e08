"""Limits of an episode, and the errors of a call of the model after the episode has ended."""

import re
from dataclasses import dataclass, field

from ajet.core.trajectory.malformed import MalformedPolicy


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

    def max_completion_tokens(self, turn: int, prompt_length: int) -> int:
        """Returns how many tokens the reply may have; raises `EpisodeTruncated` if it may have
        none.
        """
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
    r"|turn \d+('s prompt has \d+ (tokens|characters); an episode may hold| filled the episode's"
    r"|'s reply is malformed|'s given reply has)"
)


_LIMITS = {
    r"the first prompt has": "ajet.data.max_prompt_length",
    r"turn \d+('s (prompt|given reply) has| filled the episode's)": "ajet.data.max_response_length",
    r"the episode used its|\d+ more calls pass": "ajet.rollout.multi_turn.max_steps",
    r"turn \d+'s reply is malformed": "ajet.rollout.compute_madness_checklist",
    r"the program used more than": "ajet.harness.limits",
    r"request |the prompt fills the model's context": "ajet.rollout.max_model_len",
}


def limit_of(truncation: str | None) -> str:
    """Returns the config's key of the limit that cut an episode, from the reason it recorded."""
    for pattern, key in _LIMITS.items():
        if re.match(pattern, truncation or ""):
            return key
    return "another limit"


def is_own_limit(truncation: str) -> bool:
    """Tells whether one of the episode's own limits cut it, so that the next call reached no
    engine.
    """
    return _REFUSED.match(truncation) is not None
