"""A FrozenLake that shows the picture of another board: a control for learning_pixels.py."""

from collections.abc import Mapping
from typing import Any

from ajet.core.environment.environment import Info, Observation
from ajet.environments.frozen_lake import FrozenLake


class OtherLake(FrozenLake):
    """Plays one board, and shows what a walker on another one sees after the same actions."""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self._shown = FrozenLake(view="image", show_neighbours=False)
        _, info = super().reset(seed, options)
        other = None if seed is None else seed ^ 1 << 40
        seen, _ = self._shown.reset(other, options)
        return seen, info

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        _, reward, terminated, truncated, info = super().step(action)
        seen, *_ = self._shown.step(action)
        return seen, reward, terminated, truncated, info
