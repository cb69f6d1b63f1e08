"""Boards that show the picture of another one: controls for learning_pixels.py."""

from collections.abc import Mapping
from typing import Any

from ajet.core.environment.environment import Environment, Info, Observation
from ajet.environments.frozen_lake import FrozenLake
from ajet.environments.sokoban import Sokoban


class Other(Environment):
    """Plays one board, and shows what a player on another one sees after the same actions. A
    subclass is a game too, which plays."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._settings = settings

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        game: Any = type(self).__mro__[2]
        self._shown_board = game(**self._settings)
        _, info = super().reset(seed, options)
        other = None if seed is None else seed ^ 1 << 40
        seen, _ = self._shown_board.reset(other, options)
        return seen, info

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        _, reward, terminated, truncated, info = super().step(action)
        seen, *_ = self._shown_board.step(action)
        return seen, reward, terminated, truncated, info


class OtherLake(Other, FrozenLake):
    pass


class OtherRoom(Other, Sokoban):
    pass
