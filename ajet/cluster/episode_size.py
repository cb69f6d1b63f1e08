"""Says how long an episode is expected to be, for estimates made before any has run.

An episode is taken as one prompt and one reply. Not covered: episodes of many turns, and prompts of
several groups that begin alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from ajet.core.config import AjetConfig

EXPECTED_SHARE = 0.5
"""The expected length of an episode, as a share of its maximum length."""


@dataclass(frozen=True)
class EpisodeSize:
    """Holds the expected tokens of one episode."""

    prompt: int
    reply: int

    @classmethod
    def of(cls, config: AjetConfig, prompt: int | None, reply: int | None) -> EpisodeSize:
        """Returns the given lengths, or a share of the longest ones."""
        data = config.ajet.data
        return cls(
            prompt or round(EXPECTED_SHARE * data.max_prompt_length),
            reply or round(EXPECTED_SHARE * data.max_response_length),
        )

    @property
    def length(self) -> int:
        return self.prompt + self.reply
