"""Finds environments by `env_type`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from ajet.core.environment.environment import Environment
from ajet.core.environment.foreign import adapted
from ajet.core.errors import ConfigError, NoSuchEnvironment, SettingError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import did_you_mean
from ajet.core.user_code.importing import arrow_form, load_object, require_method
from ajet.core.user_code.plugins import load_plugin, plugins

ENVIRONMENTS = "ajet.environments"
"""The group of entry points: names for `env_type` and their classes."""
PREFIXES = "ajet.environment_prefixes"
"""The same of prefixes and their adapters, whose first argument is the text after the colon."""


@dataclass(frozen=True, slots=True)
class EnvironmentMaker:
    """Makes a new environment at each call. Other processes find the class by the names, which is
    why these are stored too."""

    environment_class: type[Environment]
    arguments: tuple[str, ...]
    env_type: str
    env_config: Mapping[str, Any]
    base_dirs: tuple[Path, ...]

    def __call__(self) -> Environment:
        return self.environment_class(*self.arguments, **self.env_config)


def environment_maker(
    env_type: str, env_config: Mapping[str, Any], base_dirs: Sequence[Path], location: str
) -> EnvironmentMaker:
    """Returns the maker of an `env_type`. Raises ConfigError for an unknown type, and for a setting
    that its class does not take.

    frozen_lake                     one of ajet/environments, imported on use
    FrozenLake-v1, gymnasium:ID     anything registered with Gymnasium whose observations are text,
                                    or can be written as text
    textarena:ID, reasoning_gym:ID  a game or a task family of that package
    openenv:URL, openenv:mod->Class an environment of OpenEnv: a server's, or of this process
    textworld:NAME                  a challenge of TextWorld, or a folder of game files
    scienceworld:NAME               a task of ScienceWorld
    miniwob:NAME                    a task of MiniWoB in a browser
    file.py->Class, package->Class  a subclass of `Environment`, or a class with reset(seed) and
                                    step(action), such as one on gem.Env (foreign.py)
    env_service                     an environment behind the env-service protocol
    """
    cls, arguments = _kind_of(env_type, base_dirs, location)
    names = arguments_of(cls)
    unknown = next((name for name in env_config if names is not None and name not in names), None)
    if names is not None and unknown is not None:
        hint = did_you_mean(unknown, names)
        raise SettingError(f"{location}: {env_type} has no setting {unknown!r}; {hint}")
    return EnvironmentMaker(cls, arguments, env_type, env_config, tuple(base_dirs))


def arguments_of(cls: type[Environment]) -> tuple[str, ...] | None:
    """Returns the settings that the class takes; None where it takes any."""
    parameters = signature(cls).parameters.values()
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return tuple(
        parameter.name
        for parameter in parameters
        if parameter.kind is not Parameter.POSITIONAL_ONLY
    )


def _kind_of(
    env_type: str, base_dirs: Sequence[Path], location: str
) -> tuple[type[Environment], tuple[str, ...]]:
    def load(spec: str) -> type[Environment]:
        cls = load_object(spec, base_dirs=base_dirs, base=object, location=location)
        if issubclass(cls, Environment):
            place = f"{location}: {spec!r}"
            require_method(cls, "reset", Environment, ("seed", "options"), place)
            require_method(cls, "step", Environment, ("action",), place)
        return adapted(cls, f"{location}: {spec!r}")

    prefix, colon, name = env_type.partition(":")
    if colon and prefix in plugins(PREFIXES):
        return load_plugin(PREFIXES, prefix), (name,)
    if "->" in env_type:
        return load(env_type), ()
    if env_type in plugins(ENVIRONMENTS):
        return load_plugin(ENVIRONMENTS, env_type), ()
    if "-v" in env_type:  # Gymnasium's ids end in a version
        return load_plugin(PREFIXES, "gymnasium"), (env_type,)
    if (form := arrow_form(env_type)) is not None:
        raise ConfigError(f"{location}: {env_type!r}: write {form}", code=Code.OWN_SPEC_FORM)
    prefixes = ", ".join(f"{prefix}:ID" for prefix in plugins(PREFIXES))
    raise NoSuchEnvironment(
        f"{location}: no environment {env_type!r}; there are {', '.join(plugins(ENVIRONMENTS))}, "
        f"{prefixes}, or your own class as file.py->Class"
    )
