"""The row of an advantage estimator in the registry: its function, its options and its traits.

    GRPO = Estimator(grpo, reads=("normalize_std",), compares_group=True)

Other code reads the traits and knows no estimator by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ajet.core.advantage.credit import AdvantageOptions, Advantages, GroupCredit

Compute = Callable[[Sequence[GroupCredit], AdvantageOptions], Advantages]
"""Computes a batch's raw advantages, before whitening and clipping."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """An estimator: its function and its traits."""

    compute: Compute
    reads: tuple[str, ...] = ()
    """The fields of `AdvantageOptions` (keys of the config) that it reads."""
    whitens: bool = False
    """Its definition includes whitening; `whiten_advantages` overrides this if not null."""
    needs_critic: bool = False
    needs_greedy_episode: bool = False
    compares_group: bool | Callable[[AdvantageOptions], bool] = False
    """An episode alone in its group has no advantage; may depend on the options."""
    compares_named_rewards: bool = False
    """It reads `reward_weights` instead of the episode's reward."""
    credits_by: Literal["state_key", "reward"] | None = None
    """What it reads of single turns; a run in which no turn has it gets a warning."""
    metrics: Callable[[Sequence[GroupCredit]], dict[str, float]] | None = None

    def compares(self, options: AdvantageOptions) -> bool:
        """Tells whether, with these options, a lone episode has no advantage."""
        compares = self.compares_group
        return compares(options) if callable(compares) else compares
