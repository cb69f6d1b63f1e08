"""The coefficient of the KL in the reward: fixed, or adapted towards a target.

    error  = clip(kl / target - 1, -0.2, 0.2)
    coef  *= 1 + error * min(episodes, horizon) / horizon

Ziegler et al. 2019 (arXiv 1909.08593). After `horizon` episodes whose KL is far from
the target, the coefficient has moved by a fifth. A step of more episodes moves it by no more: with
five times the horizon the paper's formula gives a coefficient of 0, and with more a negative one,
which would reward the distance to the reference. A checkpoint contains the coefficient.
"""

MAX_ERROR = 0.2


class FixedKLController:
    """Holds the coefficient of the KL in the reward: that of the config, whatever the KL is."""

    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, kl: float, num_episodes: int) -> None:
        """Is called with the mean KL of a step with `num_episodes` episodes; does nothing here."""

    def state_dict(self) -> dict[str, float]:
        """Returns what a checkpoint holds: nothing, since the config's coefficient also holds after
        resuming."""
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores the state of a checkpoint."""


class AdaptiveKLController(FixedKLController):
    """Raises the coefficient after a step with a KL above the target, and lowers it after one
    below.
    """

    def __init__(self, coef: float, target: float, horizon: int) -> None:
        super().__init__(coef)
        self.target, self.horizon = target, horizon

    def update(self, kl: float, num_episodes: int) -> None:
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        self.coef *= 1 + error * min(num_episodes, self.horizon) / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]
