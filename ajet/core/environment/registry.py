"""Finds environments by `env_type`.

    frozen_lake                     one of ajet/envs, imported when it is asked for
    FrozenLake-v1, gymnasium:ID     anything registered with Gymnasium whose observations are text,
                                    or can be written as text
    textarena:ID, reasoning_gym:ID  a game or a task family of that package
    openenv:URL, openenv:mod->Class an environment of OpenEnv: a server's, or of this process
    textworld:NAME                  a challenge of TextWorld, or a folder of game files
    scienceworld:NAME               a task of ScienceWorld
    file.py->Class, package->Class  a subclass of `Environment`, or a class with reset(seed) and
                                    step(action), such as one on gem.Env (foreign.py)
    env_service                     an environment behind the env-service protocol

Not covered: who calls it, and where (live.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from ajet.core.environment.environment import Environment
from ajet.core.environment.foreign import adapted
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.importing import load_object, require_method

ENVS = "ajet.envs"
GAMES = {
    "frozen_lake": f"{ENVS}.frozen_lake->FrozenLake",
    "sokoban": f"{ENVS}.sokoban->Sokoban",
    "webshop": f"{ENVS}.webshop->WebShop",
    "countdown": f"{ENVS}.countdown->Countdown",
    "guess_number": f"{ENVS}.guess_number->GuessNumber",
}
BUILT_IN = GAMES | {"env_service": "ajet.tools.env_service.environment->ServedEnvironment"}
PREFIXED = {
    "gymnasium": f"{ENVS}.gymnasium->GymnasiumEnvironment",
    "textarena": f"{ENVS}.textarena->TextArenaEnvironment",
    "reasoning_gym": f"{ENVS}.reasoning_gym->ReasoningGymEnvironment",
    "openenv": f"{ENVS}.openenv->OpenEnvEnvironment",
    "textworld": f"{ENVS}.textworld->TextWorldEnvironment",
    "scienceworld": f"{ENVS}.scienceworld->ScienceWorldEnvironment",
}
"""Maps a prefix to an adapter, whose first argument is the text after the colon."""


@dataclass(frozen=True, slots=True)
class EnvironmentMaker:
    """Makes a new environment at each call. The names are stored beside the class: another process
    finds the class by them."""

    kind: type[Environment]
    arguments: tuple[str, ...]
    env_type: str
    env_config: Mapping[str, Any]
    base_dirs: tuple[Path, ...]

    def __call__(self) -> Environment:
        return self.kind(*self.arguments, **self.env_config)


def environment_maker(
    env_type: str, env_config: Mapping[str, Any], base_dirs: Sequence[Path], where: str
) -> EnvironmentMaker:
    """Returns the maker of an `env_type`. Raises ConfigError for a type that does not exist, or an
    argument that it does not take."""
    kind, arguments = _kind_of(env_type, base_dirs, where)
    known = arguments_of(kind)
    unknown = next((name for name in env_config if known is not None and name not in known), None)
    if known is not None and unknown is not None:
        close = get_close_matches(unknown, known, 1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known) or 'none'}"
        raise ConfigError(
            f"{where}: {env_type} has no setting {unknown!r}; {hint}", code=Code.ENVIRONMENT_SETTING
        )
    return EnvironmentMaker(kind, arguments, env_type, env_config, tuple(base_dirs))


def arguments_of(kind: type[Environment]) -> tuple[str, ...] | None:
    """Returns the names that its `env_config` may have; None where it takes any."""
    parameters = signature(kind).parameters.values()
    if any(each.kind is Parameter.VAR_KEYWORD for each in parameters):
        return None
    return tuple(each.name for each in parameters if each.kind is not Parameter.POSITIONAL_ONLY)


def _kind_of(
    env_type: str, base_dirs: Sequence[Path], where: str
) -> tuple[type[Environment], tuple[str, ...]]:
    def load(spec: str) -> type[Environment]:
        kind = load_object(spec, base_dirs=base_dirs, base=object, location=where)
        if issubclass(kind, Environment):
            place = f"{where}: {spec!r}"
            require_method(kind, "reset", Environment, ("seed", "options"), place)
            require_method(kind, "step", Environment, ("action",), place)
        return adapted(kind, f"{where}: {spec!r}")

    prefix, colon, name = env_type.partition(":")
    if colon and prefix in PREFIXED:
        return load(PREFIXED[prefix]), (name,)
    if "->" in env_type:
        return load(env_type), ()
    if env_type in BUILT_IN:
        return load(BUILT_IN[env_type]), ()
    if "-v" in env_type:
        return load(PREFIXED["gymnasium"]), (env_type,)
    raise ConfigError(
        f"{where}: no environment {env_type!r}; there are {', '.join(BUILT_IN)}, "
        f"{', '.join(f'{each}:ID' for each in PREFIXED)}, or your own class as file.py->Class",
        code=Code.NO_SUCH_ENVIRONMENT,
    )
