"""Runs an environment class that does not derive from `Environment`: ROLL's, or Gymnasium's own.

The class has `reset(seed)` or `reset(seed, options)`, and `step(action)` with Gymnasium's five
values. Its instruction is its `instruction`, `get_instructions()` or `env_instruction`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from ajet.core.environment.environment import Environment, Frame, Info
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.text.plain_value import type_name
from ajet.core.user_code.importing import line_of
from ajet.core.user_code.signatures import accepted_arguments


class ForeignEnvironment(Environment):
    """Calls an object of `environment_class`; `adapted` derives a subclass for each class."""

    environment_class: ClassVar[type]

    def __init__(self, **settings: Any) -> None:
        self._environment: Any = self.environment_class(**settings)
        self._observation = ""

    @property
    def instruction(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        text = getattr(self._environment, "instruction", None)
        if text is None and hasattr(self._environment, "get_instructions"):
            text = self._environment.get_instructions()
        return str(text or getattr(self._environment, "env_instruction", None) or "")

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        arguments = {"seed": seed, "options": dict(options or {})}
        reset = self._environment.reset
        return self._kept(reset(**accepted_arguments(reset, arguments)))

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        return self._kept(self._environment.step(action))

    def render(self) -> Frame:
        if not hasattr(self._environment, "render"):
            return self._observation
        drawn = self._environment.render()
        return self._observation if drawn is None else drawn

    def close(self) -> None:
        if hasattr(self._environment, "close"):
            self._environment.close()

    def _kept(self, returned: Any) -> Any:
        """Appends `info["suffix"]` to the observation of a returned tuple, and keeps the
        observation for `render`. Malformed results are returned unchanged, for the checks."""
        if not (isinstance(returned, tuple) and returned and isinstance(returned[0], str)):
            return returned
        observation, *rest = returned
        if rest and isinstance(rest[-1], dict) and rest[-1].get("suffix") is not None:
            suffix = rest[-1]["suffix"]
            if not isinstance(suffix, str):
                raise EnvironmentFault(
                    f"{type(self).__name__}: info['suffix'] is a {type_name(type(suffix))}, "
                    "not text"
                )
            observation = f"{observation}\n{suffix}" if suffix else observation
        self._observation = observation
        return observation, *rest


def _actions(cls: type) -> dict[str, Any]:
    """Returns the methods for `ajet inspect env` that `cls` has. The check recognizes a missing one
    because it is still that of `Environment`."""

    takes_generator = callable(getattr(cls, "sample_action", None))

    def sample_action(self: ForeignEnvironment, rng: random.Random) -> str:
        if takes_generator:
            return str(self._environment.sample_action(rng))
        return str(self._environment.sample_random_action())  # ROLL's name

    def oracle_action(self: ForeignEnvironment) -> str | None:
        action = self._environment.oracle_action()
        return None if action is None else str(action)

    methods: dict[str, Any] = {}
    if takes_generator or callable(getattr(cls, "sample_random_action", None)):
        methods["sample_action"] = sample_action
    if callable(getattr(cls, "oracle_action", None)):
        methods["oracle_action"] = oracle_action
    return methods


@cache
def adapted(cls: type, location: str) -> type[Environment]:
    """Returns the class itself if it is an `Environment`, else a subclass of `ForeignEnvironment`
    under its name. Raises ConfigError for a class without `reset(seed)` and `step`."""
    if issubclass(cls, Environment):
        return cls
    # By name, since Gymnasium may not be installed.
    if any(base.__module__.startswith("gymnasium.vector") for base in cls.__mro__):
        raise ConfigError(
            f"{location}: {line_of(cls)}: {cls.__name__} steps several episodes at once, and here "
            "each episode has a separate one: name the class or the id of a single environment",
            code=Code.NOT_AN_ENVIRONMENT,
        )
    missing = [name for name in ("reset", "step") if not callable(getattr(cls, name, None))]
    if missing:
        raise ConfigError(
            f"{location}: {line_of(cls)}: {cls.__name__} is not an environment: it has no "
            f"{' and no '.join(missing)}; write reset(seed) and step(action), or derive it from "
            "ajet.core.environment.environment.Environment",
            code=Code.NOT_AN_ENVIRONMENT,
        )
    if not accepted_arguments(cls.reset, {"seed": None}):  # pyright: ignore[reportAttributeAccessIssue]
        raise ConfigError(
            f"{location}: {line_of(cls)}: {cls.__name__}.reset takes no seed: write "
            "reset(self, seed=None), because the episodes of a group play one instance",
            code=Code.NOT_AN_ENVIRONMENT,
        )
    # The subclass looks like the class: errors name it, and its settings are checked by signature.
    copied = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    signature = {"__signature__": inspect.signature(cls), "environment_class": cls}
    return type(cls.__name__, (ForeignEnvironment,), copied | signature | _actions(cls))


def reads_replies(cls: type[Environment]) -> bool:
    """Tells whether the class finds the action in a whole reply itself: its constructor takes
    `action_pattern`."""
    return (
        issubclass(cls, ForeignEnvironment)
        and "action_pattern" in inspect.signature(cls).parameters
    )
