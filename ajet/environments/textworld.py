"""Plays text games of TextWorld: rooms, things and a quest, with a score as the reward.

docs/environments.md has the settings. A challenge's games are generated and compiled when they are
first played, once in a process (two to four CPU seconds each).
"""

from __future__ import annotations

import argparse
import atexit
import shutil
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from ajet.core.environment.environment import Environment, Info
from ajet.core.errors import NoSuchEnvironment, SettingError
from ajet.core.user_code.importing import require_package
from ajet.environments.randomness import belongs_to

SUFFIXES = (".z8", ".ulx")
MAX_COMMAND = 120
"""The longest command in characters: the interpreters are C programs with small buffers."""
VALIDATION_SEED = 10**6
"""Seeds of validation's games begin here."""
_one_at_a_time = threading.Lock()
"""Held while a game is generated or loaded: both use global state of the package."""


class TextWorldEnvironment(Environment):
    """Plays one game. `name` is a challenge of the package, a folder of game files, or one file;
    `settings` are the challenge's. The seed chooses one of `num_games`; validation has
    `num_validation_games` others. A hash of a file's name decides its split; one file is played in
    both. The reward is the change of the score, as a share of the largest. A command that is not
    among those that make sense is still sent to the game, and counts as invalid."""

    instruction = "Write one command of the game."

    def __init__(
        self,
        name: str,
        /,
        num_games: int = 64,
        num_validation_games: int = 16,
        show_commands: bool = True,
        **settings: Any,
    ) -> None:
        require_package("textworld", wanted_by=f"textworld:{name}")
        # jericho warns at each game that it does not know; TextWorld keeps the score itself.
        warnings.filterwarnings("ignore", "Game .* is not fully supported", module="jericho")
        self._name = name
        self._settings = settings
        self._num_games = {"train": num_games, "validation": num_validation_games}
        self._show_commands = show_commands
        self._files = _game_files(name)
        if self._files is None:
            _checked_settings(name, settings)
        elif settings:
            raise SettingError(
                f"textworld:{name}: env_config.{next(iter(settings))}: the games are files; "
                "settings are a challenge's"
            )
        self._game: Any = None
        self._state: Any = None
        self.observation = ""

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[str, Info]:
        textworld = import_module("textworld")
        split = str((options or {}).get("split", "train"))
        path = self._path(Random(seed).randrange(2**31), split)
        self.close()
        with _one_at_a_time:
            self._game = textworld.start(str(path), _infos())
            self._game.seed(0)  # random events within a game; the episode's seed chose the game
            self._state = self._game.reset()
        state = self._state
        texts = [state.objective, state.description] if state.objective else [state.feedback]
        self.observation = self._text("\n\n".join(filter(None, texts)))
        return self.observation, {"state_key": _key(state)}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        command = " ".join(action.split())
        # Some control characters are keys to the interpreters, and crash the process.
        is_safe = command.isascii() and command.isprintable()
        if not command or len(command) > MAX_COMMAND or not is_safe:
            metrics = {"action_is_valid": False}
            text = f"{self.instruction}\n{self.observation}"
            return text, 0.0, False, False, {"metrics": metrics, "state_key": _key(self._state)}
        before, is_known = self._state.score or 0, command in self._commands
        self._state, _, is_over = self._game.step(command)
        state = self._state
        self.observation = self._text(state.feedback)
        reward = ((state.score or 0) - before) / (state.max_score or 1)
        metrics = {"success": bool(state.won), "action_is_valid": is_known, "score": reward}
        info = {"metrics": metrics, "metrics_agg_mode": {"score": "sum"}, "state_key": _key(state)}
        return self.observation, reward, bool(is_over), False, info

    def render(self) -> str:
        return self.observation

    def close(self) -> None:
        if self._game is not None:
            self._game.close()
            self._game = None

    def sample_action(self, rng: Random) -> str:
        return rng.choice(sorted(self._commands) or ["look"])

    def oracle_action(self) -> str | None:
        commands = self._state.policy_commands
        return commands[0] if commands else None

    @property
    def _commands(self) -> Sequence[str]:
        return self._state.admissible_commands or ()

    def _path(self, number: int, split: str) -> Path:
        if self._files is not None:
            of_split = [file for file in self._files if belongs_to(split, file.name)]
            files = self._files if len(self._files) == 1 else of_split
            if not files:
                raise ValueError(f"textworld:{self._name}: no game of {split!r} among the files")
            return files[number % len(files)]
        number %= self._num_games.get(split, self._num_games["train"])
        seed = number + (VALIDATION_SEED if split == "validation" else 0)
        return _generated(self._name, tuple(sorted(self._settings.items())), seed)

    def _text(self, text: str) -> str:
        """Returns the game's answer, without the prompt and the status line below it."""
        message = text.partition("\n>")[0].strip()
        score = f"Score: {self._state.score or 0} of {self._state.max_score or 0}."
        lines = [message, score]
        if self._show_commands and self._commands:
            lines.append(f"Commands: {', '.join(sorted(self._commands))}.")
        return "\n".join(lines)


class _SettingsParser(argparse.ArgumentParser):
    """Reads settings with a challenge's command-line arguments."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{self.prog}: {message}")


def _checked_settings(name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns all settings of a challenge; raises ConfigError for one that it does not take."""
    add_arguments = _challenge(name)[2]
    key_prefix = f"textworld:{name}: env_config"
    parser = _SettingsParser(
        prog=key_prefix, add_help=False, allow_abbrev=False, exit_on_error=False
    )
    add_arguments(parser)
    words = []
    for key, value in settings.items():
        if value is not False and value is not None:
            words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    try:
        return vars(parser.parse_args(words))
    except argparse.ArgumentError as error:
        raise SettingError(f"{key_prefix}: {error}") from error


def _challenge(name: str) -> Sequence[Any]:
    challenges = import_module("textworld.challenges").CHALLENGES
    challenge = challenges.get(f"tw-{name.removeprefix('tw-')}")
    if challenge is None:
        names = ", ".join(sorted(key.removeprefix("tw-") for key in challenges))
        raise NoSuchEnvironment(
            f"textworld:{name}: no file, no folder and no challenge; the challenges are {names}"
        )
    return challenge


def _game_files(name: str) -> list[Path] | None:
    """Returns the game files of a folder, or the one file; None for a challenge."""
    path = Path(name)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise NoSuchEnvironment(
                f"textworld:{name}: the folder has no game ({', '.join(SUFFIXES)})"
            )
        return files
    return [path] if path.is_file() else None


def _generated(name: str, settings: tuple[tuple[str, Any], ...], seed: int) -> Path:
    """Returns the file of a challenge's game, which is made at first use."""
    identity = sha256(repr((name, settings, seed)).encode()).hexdigest()[:24]
    path = _folder() / f"{identity}.z8"
    with _one_at_a_time:
        if not path.exists():
            textworld = import_module("textworld")
            options = textworld.GameOptions()
            options.seeds = seed
            options.path = str(path)
            game = _challenge(name)[1](_checked_settings(name, dict(settings)), options)
            textworld.generator.compile_game(game, options)
    return path


@cache
def _folder() -> Path:
    """Returns this process's folder of generated games, which is removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="ajet-textworld-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _infos() -> Any:
    names = ("admissible_commands", "policy_commands", "objective", "description", "facts")
    fields = dict.fromkeys((*names, "score", "max_score", "won", "lost"), True)
    return import_module("textworld").EnvInfos(**fields)


def _key(state: Any) -> str | None:
    """Returns a hash of the world's facts; None for a game that does not list them."""
    if not state.facts:
        return None
    return sha256("\n".join(sorted(map(str, state.facts))).encode()).hexdigest()[:16]
