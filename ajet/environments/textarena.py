"""Wraps a game for one player of textarena. There are no splits.

env_type: textarena:GuessTheNumber-v0
env_config: {max_number: 10}            the game's arguments
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import ConfigError, NoSuchEnvironment
from ajet.core.errors.codes import Code
from ajet.core.seeding import derive
from ajet.core.user_code.importing import require_package
from ajet.environments.randomness import PrivateRandom, lock

PLAYER = 0
SEVERAL_PLAYERS = ("TwoPlayerState", "FFAMultiPlayerState", "TeamMultiPlayerState")
SEVERAL_PLAYERS += ("MinimalMultiPlayerState",)


class TextArenaEnvironment(Environment):
    """Wraps a game of textarena; `env_id` is the id under which textarena registers it. An
    observation contains the game's messages since the last action, without the action itself (for
    an id with `-train`, the package's wrappers decide: they show the prompt and the board). The
    reward comes at the end; at least 1 is a success.

    textarena draws from Python's global `random` and numpy's, so every call runs with the game's
    private random state, and concurrent games stay reproducible. A game that hangs holds the lock;
    `isolation: process` can end it."""

    def __init__(self, env_id: str, **settings: Any) -> None:
        require_package("textarena", wanted_by=f"textarena:{env_id}")
        self.env_id = env_id
        with lock:
            self._game = _make_game(env_id, settings)
        self._bare = self._game
        while isinstance(self._bare, import_module("textarena").Wrapper):
            self._bare = self._bare.env
        # A game does not say how many players it takes, but its reset() names its state's class.
        if any(name in SEVERAL_PLAYERS for name in type(self._bare).reset.__code__.co_names):
            raise ConfigError(
                f"textarena:{env_id}: a game for several players; take one for one player",
                code=Code.ENVIRONMENT_FAILS,
            )
        self._random = PrivateRandom(0)
        self._is_over = False
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        seed = random.SystemRandom().getrandbits(63) if seed is None else seed
        self._random, self._is_over = PrivateRandom(derive(seed, "textarena", "drawn")), False
        with self._random.active():
            self._game.reset(num_players=1, seed=derive(seed, "textarena") % 2**32)
            self.observation = self._observation_text()
        return self.observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        if self._is_over:
            over = {"metrics": {"success": False, "action_is_valid": False}}
            return "The game is over.", 0.0, True, False, over
        with self._random.active():
            is_done, _ = self._game.step(action=action)
            self.observation = self._observation_text()
            # The game counts errors in a row, and a valid move sets the count to 0.
            is_refused, reward = bool(getattr(self._bare.state, "error_count", 0)), 0.0
            if is_done:
                rewards, info = self._game.close()
                is_refused = bool(info[PLAYER].get("invalid_move"))
                # Some games put the reason for a refusal where the reward belongs.
                final = (rewards or {}).get(PLAYER, 0.0)
                reward = 0.0 if isinstance(final, str) else float(final)
        self._is_over = is_done
        metrics = {"success": is_done and reward >= 1, "action_is_valid": not is_refused}
        return self.observation, reward, is_done, False, {"metrics": metrics}

    def render(self) -> str:
        return self.observation

    def _observation_text(self) -> str:
        if self._shows_history():
            messages = self._bare.state.get_current_player_observation()
            texts = [text for sender, text, _ in messages if sender != PLAYER]
        else:
            texts = [self._game.get_observation()[1]]
        reason = self._bare.state.game_info[PLAYER].get("reason")
        return "\n".join([*map(str, texts), *([reason] if reason else [])]).strip()

    def _shows_history(self) -> bool:
        """Returns whether the package's observation would repeat the whole game at every step, or
        the game has no observation wrapper."""
        from textarena.core import ObservationWrapper, Wrapper
        from textarena.wrappers import LLMObservationWrapper

        wrapped = self._game
        while isinstance(wrapped, Wrapper):
            if isinstance(wrapped, ObservationWrapper):
                return type(wrapped) is LLMObservationWrapper
            wrapped = wrapped.env
        return True


def _make_game(env_id: str, settings: Mapping[str, Any]) -> Any:
    """Returns the game. Making it imports the game's module, which may be broken or need a
    network."""
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    if env_id not in ENV_REGISTRY:
        raise NoSuchEnvironment(f"textarena:{env_id}: textarena has no game of that id")
    try:
        return textarena.make(env_id, **settings)
    except Exception as error:  # a game's constructor may raise anything
        message = " ".join(str(error).strip("* \n").split())[:200]
        raise ConfigError(
            f"textarena:{env_id}: {type(error).__name__}: {message}", code=Code.ENVIRONMENT_FAILS
        ) from error
