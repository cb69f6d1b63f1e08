"""Token chains: an agent's trained tokens of one episode, over its turns, as one array column.

    turns        [a0 a1] obs [b0] other agent's turn [c0 c1]
    chain         a0 a1       b0                      c0 c1     rewards are on a1, b0, c1

Prompts, tool results and other agents' turns are skipped, so the discount does not count them. A
turn's reward (agent_steps.py) is on its last token; each token's penalty is subtracted. Arrays
[T, C] have one column for each agent of each episode, padded with 0 after its end.
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
    """One turn's tokens in its chain: positions `start` to `stop`."""

    turn: int
    chain: int
    start: int
    stop: int
    reward: float


@dataclass(frozen=True, slots=True)
class TokenChains:
    """The chains of a batch, and where the turns of its episodes are in them."""

    episodes: list[EpisodeCredit]
    spans: list[list[_ChainSpan]]  # one list for each episode
    rewards_TC: NDArray[np.float64]

    def to_chains(self, arrays: Callable[[EpisodeCredit], TokenArrays]) -> NDArray[np.float64]:
        """Arranges the token arrays of each episode as chains."""
        chains_TC = np.zeros_like(self.rewards_TC)
        for episode, spans in zip(self.episodes, self.spans, strict=True):
            by_turn = arrays(episode)
            for span in spans:
                chains_TC[span.start : span.stop, span.chain] = by_turn[span.turn]
        return chains_TC

    def to_turns(self, values_TC: NDArray[np.float64]) -> Advantages:
        """Returns the chains' numbers as arrays by episode and turn."""
        # Transposed once, so that a turn's tokens are contiguous.
        values_CT = np.ascontiguousarray(values_TC.T, dtype=np.float32)
        turns: Advantages = {}
        for episode, spans in zip(self.episodes, self.spans, strict=True):
            by_turn = [_NO_TOKENS] * len(episode.lengths_T)
            for span in spans:
                by_turn[span.turn] = values_CT[span.chain, span.start : span.stop].copy()
            turns[episode.episode_id] = tuple(by_turn)
        return turns


def token_chains(groups: Sequence[GroupCredit]) -> TokenChains:
    """Builds the chains of all agents of a batch."""
    episodes = episodes_of(groups)
    spans: list[list[_ChainSpan]] = []
    num_chains = 0
    for episode in episodes:
        spans.append([])
        for steps in agent_steps(episode):
            stop = 0
            for turn, reward in zip(steps.turns_S.tolist(), steps.rewards_S.tolist(), strict=True):
                start, stop = stop, stop + int(episode.lengths_T[turn])
                spans[-1].append(_ChainSpan(turn, num_chains, start, stop, reward))
            num_chains += 1
    all_spans = [span for episode_spans in spans for span in episode_spans]
    length = max((span.stop for span in all_spans), default=0)
    chains = TokenChains(episodes, spans, np.zeros((length, num_chains)))
    for span in all_spans:
        chains.rewards_TC[span.stop - 1, span.chain] = span.reward
    if any(episode.penalties for episode in episodes):
        chains.rewards_TC[:] -= chains.to_chains(_penalties)
    return chains


def discounted_sums(values_TC: NDArray[np.float64], factor: float) -> NDArray[np.float64]:
    """Returns the sum of each value and all later ones, discounted once for each token. (A loop
    over tokens, vectorised over chains.)"""
    sums_TC = np.zeros_like(values_TC)
    running_C = np.zeros(values_TC.shape[1])
    for token in reversed(range(len(values_TC))):
        running_C = values_TC[token] + factor * running_C
        sums_TC[token] = running_C
    return sums_TC


def _penalties(episode: EpisodeCredit) -> TokenArrays:
    if episode.penalties is not None:
        return episode.penalties
    return tuple(np.zeros(length, np.float32) for length in episode.lengths_T)
