"""The coefficient of the KL in the reward: fixed, or steered towards a target.

    error  = clip(kl / target - 1, -0.2, 0.2)
    coef  *= 1 + error * episodes / horizon

Ziegler et al. 2019 (arXiv 1909.08593). After `horizon` episodes whose KL is far from
the target, the coefficient has moved by a fifth. It is part of a checkpoint.

Not covered: the coefficient of the KL in the loss.
"""

from typing import Protocol

from ajet.core.config import AjetConfig

MAX_ERROR = 0.2


class KLController(Protocol):
    """What the training loop holds; `state_dict` goes into its checkpoint."""

    coef: float

    def update(self, kl: float, num_episodes: int) -> None: ...

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...


class FixedKLController:
    """The coefficient of the config, whatever the KL."""

    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, kl: float, num_episodes: int) -> None:
        """Nothing is steered."""

    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """The config's coefficient stands, also on resuming."""


class AdaptiveKLController:
    """Larger after a step whose KL was above the target, smaller after one below."""

    def __init__(self, coef: float, target: float, horizon: int) -> None:
        self.coef, self.target, self.horizon = coef, target, horizon

    def update(self, kl: float, num_episodes: int) -> None:
        """`kl` is that of the step's tokens, `num_episodes` how many gave it."""
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.coef *= 1 + error * num_episodes / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]


def make_kl_controller(config: AjetConfig) -> KLController:
    """The coefficient that ``algorithm.kl_ctrl`` names; its state belongs to the run's."""
    section = config.ajet.trainer_common.algorithm.kl_ctrl
    if section.type == "fixed":
        return FixedKLController(section.kl_coef)
    return AdaptiveKLController(section.kl_coef, section.target_kl, section.horizon)
