"""What an update computed for the tokens of each turn. It is recorded; training does not read it.

The numbers are those of the step's first pass over a token, before the optimizer step that the
token is part of. NaN stands for a number that was not computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NUMBERS = ("policy_logprobs", "entropies", "ratios", "reference_logprobs")
"""Of each token: its log-probability under the policy, the entropy of the policy at its position,
the ratio that the loss used, and its log-probability under the reference."""


@dataclass(frozen=True, slots=True)
class TurnNumbers:
    """Holds the numbers of a turn's sampled tokens: an array over them for each name in `NUMBERS`.
    `cuts` maps the bounds of the loss that acted to the tokens where they did, counted from 0
    within the turn."""

    numbers: Mapping[str, NDArray[np.float32]]
    cuts: Mapping[str, Sequence[int]]


@dataclass(slots=True)
class TrainedTokens:
    """Collects the numbers of a step's tokens by episode and turn."""

    rows: dict[tuple[str, int], dict[str, NDArray[np.float32]]] = field(default_factory=dict)
    cuts: dict[tuple[str, int], dict[str, list[int]]] = field(default_factory=dict)

    def row(self, episode_id: str, turn: int, name: str, length: int) -> NDArray[np.float32]:
        """Returns the array of one number over a turn's tokens, for the caller to write to. A new
        one holds NaN."""
        rows = self.rows.setdefault((episode_id, turn), {})
        if name not in rows:
            rows[name] = np.full(length, np.nan, np.float32)
        return rows[name]

    def cut(self, episode_id: str, turn: int, name: str, tokens: Iterable[int]) -> None:
        """Adds tokens of a turn that a bound acted on."""
        cuts = self.cuts.setdefault((episode_id, turn), {})
        cuts[name] = sorted({*cuts.get(name, ()), *tokens})

    def merge(self, addition: TrainedTokens) -> None:
        """Adds the numbers of another rank or adapter; NaN overwrites nothing."""
        for (episode_id, turn), rows in addition.rows.items():
            for name, numbers in rows.items():
                mine = self.row(episode_id, turn, name, len(numbers))
                np.copyto(mine, numbers, where=np.isfinite(numbers))
        for (episode_id, turn), cuts in addition.cuts.items():
            for name, tokens in cuts.items():
                self.cut(episode_id, turn, name, tokens)

    def turns(self) -> Iterator[tuple[str, int, TurnNumbers]]:
        """Yields the numbers of each turn that has any, with its episode and its index."""
        for key, rows in self.rows.items():
            yield *key, TurnNumbers(rows, self.cuts.get(key, {}))
