"""Wraps any environment of Gymnasium; observations and actions are written as text.

`_form` says how an action is written, `as_text` how an observation is; docs/guides/game.md has the
settings.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from ajet.core.environment.environment import Environment, Frame, Info, Observation
from ajet.core.errors import ConfigError, SettingError
from ajet.core.errors.codes import Code

MAX_NUMBERS = 1024
"""An observation with more numbers is a picture, or is refused."""

View = Literal["text", "image"]
PASSED = ("metrics", "metrics_agg_mode", "state_key")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


class GymnasiumEnvironment(Environment):
    """Wraps an environment of Gymnasium. `actions` names the discrete actions, in their order;
    `instruction` replaces the generated one; `view` shows the observation, or with "image" the
    rendered picture; other settings are passed to `gymnasium.make`. From the environment's `info`,
    metrics, metrics_agg_mode and state_key are kept. A bool `success` or `is_success` in it becomes
    the metric success."""

    def __init__(
        self,
        env_id: str,
        actions: Sequence[str] | None = None,
        instruction: str | None = None,
        view: View = "text",
        **make: Any,
    ) -> None:
        import gymnasium

        if view not in get_args(View):
            raise SettingError(
                f"{env_id}: env_config.view {view!r}: choose {', '.join(get_args(View))}"
            )
        self._view = view
        if view == "image":
            make = {"render_mode": "rgb_array", **make}
        self.env_id = env_id
        try:
            self._env: Any = gymnasium.make(env_id, disable_env_checker=True, **make)
        except (gymnasium.error.Error, TypeError, ValueError, ImportError) as error:
            raise ConfigError(
                f"gymnasium: {env_id}: {' '.join(str(error).split())}", code=Code.ENVIRONMENT_FAILS
            ) from error
        self.names = None if actions is None else [str(name).strip() for name in actions]
        try:
            self._check_spaces()
        except ConfigError:
            self._env.close()
            raise
        self.form = self._form()
        self.instruction = self.form if instruction is None else instruction
        self.observation: Observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        observation, info = self._env.reset(seed=seed, options=dict(options or {}))
        self.observation = self._shown(observation)
        return self.observation, {name: info[name] for name in PASSED if name in info}

    def step(self, action: str) -> tuple[Observation, float, bool, bool, Info]:
        done = self._read(action)
        if done is None:
            metrics = {"action_is_valid": False}
            told = (self.form, self.observation)
            if isinstance(self.observation, str):
                told = f"{self.form}\n{self.observation}"
            return told, 0.0, False, False, {"metrics": metrics}
        observation, reward, terminated, truncated, info = self._env.step(done)
        self.observation = self._shown(observation)
        kept = {name: info[name] for name in PASSED if name in info}
        kept["metrics"] = {"action_is_valid": True, **dict(kept.get("metrics") or {})}
        for name in ("success", "is_success"):
            if isinstance(info.get(name), bool | np.bool_):
                kept["metrics"].setdefault("success", bool(info[name]))
        return self.observation, float(reward), bool(terminated), bool(truncated), kept

    def render(self) -> Frame:
        drawn = self._env.render() if self._env.render_mode in ("rgb_array", "ansi") else None
        if drawn is None:
            return self.observation if isinstance(self.observation, str | np.ndarray) else ""
        return drawn

    def _shown(self, observation: Any) -> Observation:
        if self._view == "image":
            return self._env.render()
        space = self._env.observation_space
        return observation if _is_picture(space) else as_text(space, observation)

    def close(self) -> None:
        self._env.close()

    def sample_action(self, rng: random.Random) -> str:
        space = self._env.action_space
        space.seed(rng.getrandbits(32))  # so that the sample depends on `rng` alone
        action = space.sample()
        return self.names[int(action) - space.start] if self.names else as_text(space, action)

    def _check_spaces(self) -> None:
        from gymnasium import spaces

        if self._view == "text" and not _is_picture(self._env.observation_space):
            _check_observations(self._env.observation_space, self.env_id)
        space = self._env.action_space
        if self.names is None:
            numbers = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
            if not isinstance(space, (spaces.Text, *numbers)):
                raise ConfigError(
                    f"{self.env_id}: actions of {space} cannot be written as text",
                    code=Code.ENVIRONMENT_FAILS,
                )
        elif not isinstance(space, spaces.Discrete) or len(self.names) != space.n:
            raise SettingError(
                f"{self.env_id}: env_config.actions has {len(self.names)} names for {space}"
            )

    def _form(self) -> str:
        from gymnasium import spaces

        space = self._env.action_space
        if self.names:
            return f"Write one action: {', '.join(self.names)}."
        if isinstance(space, spaces.Discrete):
            return f"Write one action: a number from {space.start} to {space.start + space.n - 1}."
        if isinstance(space, spaces.Text):
            return f"Write an action of at most {space.max_length} characters."
        count = int(np.prod(space.shape or ()))
        numbers = f"{count} number{'s' if count > 1 else ''}"
        if isinstance(space, spaces.Box):
            low, high = np.min(space.low), np.max(space.high)
            return f"Write an action: {numbers} from {low:g} to {high:g}."
        kind = " of 0 and 1" if isinstance(space, spaces.MultiBinary) else ", whole"
        return f"Write an action: {numbers}{kind}."

    def _read(self, text: str) -> Any:
        """Returns the action as the environment takes it, or None if the text is invalid."""
        from gymnasium import spaces

        space, text = self._env.action_space, text.strip()
        if isinstance(space, spaces.Text):
            return text if space.contains(text) else None
        if isinstance(space, spaces.Discrete):
            names = [name.lower() for name in self.names or ()]
            if text.lower() in names:
                return space.start + names.index(text.lower())
            number = int(text) if re.fullmatch(r"-?\d{1,9}", text, re.ASCII) else None
            return number if number is not None and space.contains(number) else None
        words = text.replace(",", " ").split()
        num_words = int(np.prod(space.shape or ()))
        if len(words) != num_words or not all(map(_NUMBER.fullmatch, words)):
            return None
        action = np.array([float(word) for word in words], dtype=np.float64).reshape(space.shape)
        if not isinstance(space, spaces.Box) and (action != np.floor(action)).any():
            return None  # the cast below would cut 1.5 to 1
        action = action.astype(space.dtype)
        return action if space.contains(action) else None


def as_text(space: Any, value: Any) -> str:
    """Writes a Dict as a line `name: value` for each entry, a Tuple as `value; value`, and numbers
    with blanks between them, a row a line."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        lines = [(name, as_text(field, value[name])) for name, field in space.spaces.items()]
        # A value of several lines begins below its name.
        return "\n".join(
            f"{name}:\n{text}" if "\n" in text else f"{name}: {text}" for name, text in lines
        )
    if isinstance(space, spaces.Tuple):
        return "; ".join(as_text(*pair) for pair in zip(space.spaces, value, strict=True))
    if isinstance(value, str):
        return value
    return _numbers(np.asarray(value))


def _numbers(values: np.ndarray) -> str:
    if values.ndim == 0:
        number = values.item()
        return f"{number:.4g}" if isinstance(number, float) else str(int(number))
    return ("\n" if values.ndim > 1 else " ").join(_numbers(row) for row in values)


def _is_picture(space: Any) -> bool:
    """Tells whether observations are pictures; few numbers of their type are a small map."""
    from gymnasium import spaces

    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == 3
        and space.shape[2] == 3
        and bool(np.prod(space.shape) > MAX_NUMBERS)
    )


def _check_observations(space: Any, env_id: str) -> None:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for part in inner:
            _check_observations(part, env_id)
        return
    if space.dtype is not None and space.dtype.kind == "U":  # Text, and packages' variants of it
        return
    numbers = (spaces.Discrete, spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)
    if not isinstance(space, numbers) or np.prod(space.shape or ()) > MAX_NUMBERS:
        raise ConfigError(
            f"{env_id}: observations of {space} cannot be written as text; set env_config.view to "
            "image, or write an Environment that wraps it, as file.py->Class",
            code=Code.ENVIRONMENT_FAILS,
        )
