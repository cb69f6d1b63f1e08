"""Computes how many groups of a batch each client runs, from `ajet.serve.shares`.

weight of a client   start at step 1, end from step `steps + 1` on; between them a line or half
                     a cosine
groups of a batch    batch size · weight / sum of weights, rounded by largest remainders, so
                     that the groups of all clients add up to the batch
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ajet.core.config.services import SharesConfig


@dataclass(frozen=True)
class Shares:
    """The shares of named clients in batches of `batch_size` groups."""

    config: SharesConfig
    batch_size: int

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.config.start)

    def groups(self, step: int) -> dict[str, int]:
        """Returns the number of groups of each client in the batch of `step`, which counts from 1.
        Of equal remainders, the client that is named first gets the group."""
        weights = self._weights(step)
        total = sum(weights.values())
        exact = {name: self.batch_size * weight / total for name, weight in weights.items()}
        groups = {name: math.floor(number) for name, number in exact.items()}
        missing = self.batch_size - sum(groups.values())
        by_remainder = sorted(exact, key=lambda name: groups[name] - exact[name])
        return groups | {name: groups[name] + 1 for name in by_remainder[:missing]}

    def _weights(self, step: int) -> Mapping[str, float]:
        start, end = self.config.start, self.config.end
        if not end:
            return start
        done = min(max(step - 1, 0) / self.config.steps, 1.0)
        if self.config.schedule == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return {name: weight + done * (end[name] - weight) for name, weight in start.items()}
