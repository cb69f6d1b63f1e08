"""The coefficient of the KL in the reward: fixed, or adapted towards a target.

    error  = clip(kl / target - 1, -0.2, 0.2)
    coef  *= 1 + error * min(episodes, horizon) / horizon

Ziegler et al. 2019 (arXiv 1909.08593): after `horizon` episodes whose KL is far from the target,
the coefficient has moved by a fifth.
"""

MAX_ERROR = 0.2


class FixedKLController:
    """A coefficient that stays as the config has it."""

    def __init__(self, coef: float) -> None:
        self.coef = coef

    def update(self, kl: float, num_episodes: int) -> None:
        """Adapts to the mean KL of a step with `num_episodes` episodes; here, does nothing."""

    def state_dict(self) -> dict[str, float]:
        return {}  # after resuming, the config has the coefficient

    def load_state_dict(self, state: dict[str, float]) -> None:
        pass


class AdaptiveKLController(FixedKLController):
    """Raises the coefficient after a step with a KL above the target, lowers it after one below."""

    def __init__(self, coef: float, target: float, horizon: int) -> None:
        super().__init__(coef)
        self.target, self.horizon = target, horizon

    def update(self, kl: float, num_episodes: int) -> None:
        error = min(max(kl / self.target - 1, -MAX_ERROR), MAX_ERROR)
        # min() is not in the paper: a step of more than five horizons would make the coefficient
        # negative, which rewards the distance to the reference.
        self.coef *= 1 + error * min(num_episodes, self.horizon) / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coef = state["coef"]
