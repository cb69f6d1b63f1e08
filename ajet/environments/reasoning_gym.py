"""Wraps a task family of reasoning-gym as an environment of one step.

env_type: reasoning_gym:spell_backward
env_config: {max_word_len: 6}            the family's settings
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, SettingError
from ajet.core.errors.codes import Code
from ajet.core.user_code.importing import require_package
from ajet.environments.randomness import PrivateRandom, belongs_to

DRAWS_PER_DATASET = 40
MAX_DATASETS = 10
SEEDS = 2**31
DRAW_GLOBALLY = ("list_functions", "pool_matrix")
"""Families that draw from the process's global random generators instead of from their seed."""


class ReasoningGymEnvironment(Environment):
    """Asks one question of a family, which the seed picks; the family's score is the reward. `seed`
    and `size` are refused as settings, because the episode's seed decides. The family `composite`,
    which needs settings of other families, is not supported."""

    def __init__(self, name: str, **settings: Any) -> None:
        require_package("reasoning_gym", wanted_by=f"reasoning_gym:{name}")
        for key in ("seed", "size"):
            if key in settings:
                raise SettingError(
                    f"reasoning_gym:{name}: env_config.{key}: the episode's seed decides this"
                )
        self.name, self.settings = name, settings
        self.instruction = "Answer the question. Write the answer and nothing else."
        self._dataset: Any = self._new_dataset(0)
        self._entry: dict[str, Any] = {}
        self._random: PrivateRandom | None = None

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        rng = random.Random(seed)
        self._random = PrivateRandom(rng.randrange(SEEDS)) if self.name in DRAW_GLOBALLY else None
        with self._private_random():
            self._entry = self._draw(rng, (options or {}).get("split"))
        return self._entry["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        try:
            score, is_scored = float(self._dataset.score_answer(action, self._entry)), True
        except Exception:  # noqa: BLE001  # some scorers raise whatever their parsing raises
            score, is_scored = 0.0, False
        metrics = {"success": score >= 1, "action_is_valid": True, "answer_is_scored": is_scored}
        return f"The score is {score:g}.", score, True, False, {"metrics": metrics}

    def render(self) -> str:
        return self._entry["question"]

    def sample_action(self, rng: random.Random) -> str:
        """Returns the answer to another question."""
        with self._private_random():
            return str(self._dataset[rng.randrange(len(self._dataset))]["answer"])

    def oracle_action(self) -> str | None:
        """Returns the answer, or None in families that name none."""
        return self._entry["answer"]

    def _private_random(self) -> AbstractContextManager[None]:
        return nullcontext() if self._random is None else self._random.active()

    def _draw(self, rng: random.Random, split: str | None) -> dict[str, Any]:
        # A hash of a question's text decides its split. Rejection sampling, from several data sets,
        # since one may hold few questions of the split.
        for _ in range(MAX_DATASETS):
            self._dataset = self._new_dataset(rng.randrange(SEEDS))
            for _ in range(DRAWS_PER_DATASET):
                entry = self._dataset[rng.randrange(len(self._dataset))]
                if belongs_to(split, entry["question"]):
                    return entry
        raise ValueError(
            f"reasoning_gym:{self.name}: no question of the split {split!r} in "
            f"{MAX_DATASETS * DRAWS_PER_DATASET} draws: the family has too few questions"
        )

    def _new_dataset(self, seed: int) -> Any:
        import reasoning_gym

        try:
            return reasoning_gym.create_dataset(self.name, seed=seed, **self.settings)
        except (ValueError, TypeError, AssertionError) as error:
            raise ConfigError(
                f"reasoning_gym:{self.name}: "
                + (" ".join(str(error).split()) or type(error).__name__),
                code=Code.ENVIRONMENT_FAILS,
            ) from error
