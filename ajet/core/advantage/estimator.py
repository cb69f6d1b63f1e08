"""The row of an advantage estimator in the registry: its function, its options and its traits.

    GRPO = Estimator(grpo, GrpoOptions, compares_group=True)

Other code asks for the traits and knows no estimator by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from ajet.core.advantage.credit import Advantages, GroupCredit

Compute = Callable[[Sequence[GroupCredit], Any], Advantages]
"""Computes raw advantages, before whitening and clipping, as a pure function of a batch's groups
and the estimator's options."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """Holds an estimator: what computes it, and what others must know about it."""

    compute: Compute
    options: type | None = None
    """A dataclass whose fields are keys of `trainer_common.algorithm`."""
    whitens: bool = False
    """Its definition includes whitening; `whiten_advantages` overrides it if not null."""
    needs_critic: bool = False
    needs_greedy_episode: bool = False
    compares_group: bool | Callable[[Any], bool] = False
    """An episode alone in its group has no advantage; a function of the options says when."""
    compares_named_rewards: bool = False
    """It reads `reward_weights` instead of the episode's reward."""
    credits_by: Literal["state_key", "reward"] | None = None
    """What it reads of single turns, and warns about where no turn has it."""
    metrics: Callable[[Sequence[GroupCredit]], dict[str, float]] | None = None

    @property
    def reads(self) -> frozenset[str]:
        """Returns the keys of the config that it reads."""
        return frozenset(f.name for f in fields(self.options)) if self.options else frozenset()

    def compares(self, options: Any) -> bool:
        """Tells whether, with these options, a lone episode has no advantage."""
        return (
            self.compares_group(options) if callable(self.compares_group) else self.compares_group
        )
