"""Games whose `state_key` is a hash of all that they hold, random generators included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.environments.countdown import Countdown
from ajet.environments.frozen_lake import FrozenLake
from ajet.environments.guess_number import GuessNumber


class Hashed(Environment):
    """Stands before a game's class among the bases."""

    def held(self) -> Any:
        """All that the game holds, as JSON takes it."""
        return vars(self)

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        shown, info = super().reset(seed, options)
        return str(shown), info | {"state_key": self._hash()}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        shown, reward, terminated, truncated, info = super().step(action)
        return str(shown), reward, terminated, truncated, info | {"state_key": self._hash()}

    def _hash(self) -> str:
        text = json.dumps(self.held(), sort_keys=True)
        return blake2b(text.encode(), digest_size=16).hexdigest()


class HashedLake(Hashed, FrozenLake):
    def held(self) -> Any:
        lake = self._lake
        last = None if lake.lastaction is None else int(lake.lastaction)
        rng = lake.np_random.bit_generator.state
        return [self.map, int(self.position), int(lake.s), last, rng]


class HashedCountdown(Hashed, Countdown):
    pass


class HashedGuessing(Hashed, GuessNumber):
    pass
