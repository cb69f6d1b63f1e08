"""The row of an advantage estimator in the registry: its function, its options and its traits.

    GRPO = Estimator(grpo, reads=("normalize_std",), compares_group=True)

Other code asks for the traits and knows no estimator by name.
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
    """Holds an estimator: what computes it, and what others must know about it."""

    compute: Compute
    reads: tuple[str, ...] = ()
    """The fields of `AdvantageOptions`, which are keys of the config, that it reads."""
    whitens: bool = False
    """Its definition includes whitening; `whiten_advantages` overrides it if not null."""
    needs_critic: bool = False
    needs_greedy_episode: bool = False
    compares_group: bool | Callable[[AdvantageOptions], bool] = False
    """An episode alone in its group has no advantage; a function of the options says when."""
    compares_named_rewards: bool = False
    """It reads `reward_weights` instead of the episode's reward."""
    credits_by: Literal["state_key", "reward"] | None = None
    """What it reads of single turns, and warns about where no turn has it."""
    metrics: Callable[[Sequence[GroupCredit]], dict[str, float]] | None = None

    def compares(self, options: AdvantageOptions) -> bool:
        """Tells whether, with these options, a lone episode has no advantage."""
        return (
            self.compares_group(options) if callable(self.compares_group) else self.compares_group
        )
