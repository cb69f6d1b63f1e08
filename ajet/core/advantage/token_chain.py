"""An agent's trained tokens of one episode, over its turns, as one row of a batch.

    turns        [a0 a1] obs [b0] other agent's turn [c0 c1]
    row           a0 a1       b0                      c0 c1     rewards stand on a1, b0, c1

Prompts, tool results and other agents' turns are skipped: to the discount they take no time. What a
turn brought stands on its last token (agent_steps.py says what that is), less each token's penalty.
Arrays are time-major, padded with 0 behind the end, where nothing is left to come.

Not covered: a value for what lies behind the end of a truncated episode; it counts as ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ajet.core.advantage.agent_steps import agent_steps
from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import Advantages, EpisodeCredit, GroupCredit, TokenArrays

_NO_TOKENS = np.zeros(0, np.float32)


class _Place(NamedTuple):
    """Where a turn's tokens are."""

    turn: int
    row: int
    start: int
    stop: int
    reward: float


@dataclass(frozen=True, slots=True)
class TokenChains:
    """The rows of a batch and the places of its episodes' turns in them."""

    episodes: list[EpisodeCredit]
    places: list[list[_Place]]  # of each episode
    rewards_TC: NDArray[np.float64]

    def lay_out(self, arrays: Callable[[EpisodeCredit], TokenArrays]) -> NDArray[np.float64]:
        """One number a token, from each episode, as rows."""
        laid_TC = np.zeros_like(self.rewards_TC)
        for episode, places in zip(self.episodes, self.places, strict=True):
            by_turn = arrays(episode)
            for place in places:
                laid_TC[place.start : place.stop, place.row] = by_turn[place.turn]
        return laid_TC

    def take(self, values_TC: NDArray[np.float64]) -> Advantages:
        """The rows' numbers, back in the episodes' turns."""
        rows_CT = np.ascontiguousarray(values_TC.T, dtype=np.float32)
        taken: Advantages = {}
        for episode, places in zip(self.episodes, self.places, strict=True):
            by_turn = [_NO_TOKENS] * len(episode.lengths_T)
            for place in places:
                by_turn[place.turn] = rows_CT[place.row, place.start : place.stop].copy()
            taken[episode.episode_id] = tuple(by_turn)
        return taken

    def returns_to_go(self, gamma: float) -> NDArray[np.float64]:
        return discounted_sums(self.rewards_TC, gamma)


def token_chains(groups: Sequence[GroupCredit]) -> TokenChains:
    """All agents' rows of a batch."""
    episodes = episodes_of(groups)
    places: list[list[_Place]] = []
    num_rows = 0
    for episode in episodes:
        places.append(_places(episode, num_rows))
        num_rows = max((place.row + 1 for place in places[-1]), default=num_rows)
    length = max((place.stop for each in places for place in each), default=0)
    chains = TokenChains(episodes, places, np.zeros((length, num_rows)))
    for place in (place for each in places for place in each):
        chains.rewards_TC[place.stop - 1, place.row] = place.reward
    if any(episode.penalties for episode in episodes):
        chains.rewards_TC[:] -= chains.lay_out(_penalties)
    return chains


def discounted_sums(values_TC: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Each value and, discounted once a token, all after it."""
    sums_TC = np.zeros_like(values_TC)
    running_C = np.zeros(values_TC.shape[1])
    for token in reversed(range(len(values_TC))):
        running_C = values_TC[token] + factor * running_C
        sums_TC[token] = running_C
    return sums_TC


def _places(episode: EpisodeCredit, first_row: int) -> list[_Place]:
    places = []
    for row, own in enumerate(agent_steps(episode), first_row):
        stop = 0
        for turn, reward in zip(own.turns_S.tolist(), own.rewards_S.tolist(), strict=True):
            start, stop = stop, stop + int(episode.lengths_T[turn])
            places.append(_Place(turn, row, start, stop, reward))
    return places


def _penalties(episode: EpisodeCredit) -> TokenArrays:
    if episode.penalties is not None:
        return episode.penalties
    return tuple(np.zeros(length, np.float32) for length in episode.lengths_T)
