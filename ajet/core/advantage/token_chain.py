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


class _ChainSpan(NamedTuple):
    """Where a turn's tokens are."""

    turn: int
    chain: int
    start: int
    stop: int
    reward: float


@dataclass(frozen=True, slots=True)
class TokenChains:
    """The rows of a batch and the spans of its episodes' turns in them."""

    episodes: list[EpisodeCredit]
    spans: list[list[_ChainSpan]]  # of each episode
    rewards_TC: NDArray[np.float64]

    def to_chains(self, arrays: Callable[[EpisodeCredit], TokenArrays]) -> NDArray[np.float64]:
        """One number a token, from each episode, as rows."""
        chains_TC = np.zeros_like(self.rewards_TC)
        for episode, spans in zip(self.episodes, self.spans, strict=True):
            by_turn = arrays(episode)
            for span in spans:
                chains_TC[span.start : span.stop, span.chain] = by_turn[span.turn]
        return chains_TC

    def to_turns(self, values_TC: NDArray[np.float64]) -> Advantages:
        """The rows' numbers, back in the episodes' turns."""
        values_CT = np.ascontiguousarray(values_TC.T, dtype=np.float32)
        turns: Advantages = {}
        for episode, spans in zip(self.episodes, self.spans, strict=True):
            by_turn = [_NO_TOKENS] * len(episode.lengths_T)
            for span in spans:
                by_turn[span.turn] = values_CT[span.chain, span.start : span.stop].copy()
            turns[episode.episode_id] = tuple(by_turn)
        return turns

    def returns_to_go(self, gamma: float) -> NDArray[np.float64]:
        return discounted_sums(self.rewards_TC, gamma)


def token_chains(groups: Sequence[GroupCredit]) -> TokenChains:
    """All agents' rows of a batch."""
    episodes = episodes_of(groups)
    spans: list[list[_ChainSpan]] = []
    num_chains = 0
    for episode in episodes:
        spans.append(_chain_spans(episode, num_chains))
        num_chains = max((span.chain + 1 for span in spans[-1]), default=num_chains)
    length = max((span.stop for each in spans for span in each), default=0)
    chains = TokenChains(episodes, spans, np.zeros((length, num_chains)))
    for span in (span for each in spans for span in each):
        chains.rewards_TC[span.stop - 1, span.chain] = span.reward
    if any(episode.penalties for episode in episodes):
        chains.rewards_TC[:] -= chains.to_chains(_penalties)
    return chains


def discounted_sums(values_TC: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Each value and, discounted once a token, all after it."""
    sums_TC = np.zeros_like(values_TC)
    running_C = np.zeros(values_TC.shape[1])
    for token in reversed(range(len(values_TC))):
        running_C = values_TC[token] + factor * running_C
        sums_TC[token] = running_C
    return sums_TC


def _chain_spans(episode: EpisodeCredit, first_chain: int) -> list[_ChainSpan]:
    spans = []
    for chain, own in enumerate(agent_steps(episode), first_chain):
        stop = 0
        for turn, reward in zip(own.turns_S.tolist(), own.rewards_S.tolist(), strict=True):
            start, stop = stop, stop + int(episode.lengths_T[turn])
            spans.append(_ChainSpan(turn, chain, start, stop, reward))
    return spans


def _penalties(episode: EpisodeCredit) -> TokenArrays:
    if episode.penalties is not None:
        return episode.penalties
    return tuple(np.zeros(length, np.float32) for length in episode.lengths_T)
