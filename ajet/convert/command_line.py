"""Reads a shell script that starts another system: its config file and its overrides.

    export exp=math
    python -m verl.trainer.main_ppo \\                  entry: the word that holds `verl.`
        data.train_batch_size=256 \\                    override
        trainer.experiment_name=${exp} "$@"             variables of the script are put in

Not covered: loops, conditions, arrays, what a command prints; such a value is unresolved.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.convert.source import SourceConfig, set_at
from ajet.core.config.nested import flatten
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_FROM_SHELL = re.compile(r"\$[\w(@*#?!]|\$\{\w+\W*\}|\$\{[^}]*(\[|:-)|`")
_COMMAND = re.compile(r"\$\([^()\n]*\)")
_SPACE = "\u00a0"  # keeps $(date +%F) one word
_SEPARATORS = re.compile(r"[;|&\n]+")
_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*")


@dataclass
class CommandLine:
    """One call of the other system."""

    options: dict[str, str] = field(default_factory=dict)  # such as --config-file x
    overrides: list[str] = field(default_factory=list)  # key=value, as the shell passes them


def read_script(path: Path, entry: Sequence[str]) -> CommandLine:
    """Returns the first command of the script in which a word contains one of `entry`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", code=Code.NOT_CONVERTIBLE) from error
    variables = {"HOME": "~", "PWD": "."}
    for words in _commands(_without_comments(text), path):
        words = [_filled(word, variables) for word in words]
        start = next((i for i, word in enumerate(words) if any(e in word for e in entry)), None)
        if start is not None:
            return _command_line(words[start + 1 :])
        for word in words:
            if match := _ASSIGNMENT.fullmatch(word):
                variables[match[1]] = match[2]
    names = " or ".join(each.strip(".") for each in entry)
    raise ConfigError(
        f"{path}: no command here calls {names}; give the YAML itself, or the script that starts "
        "the training",
        code=Code.NOT_CONVERTIBLE,
    )


def with_overrides(read: SourceConfig, overrides: Sequence[str]) -> dict[str, str]:
    """Applies the overrides to what was read, and returns those whose value only the shell
    knows."""
    unresolved: dict[str, str] = {}
    for override in overrides:
        key, sign, text = override.partition("=")
        name = key.lstrip("+~")
        if not sign and not key.startswith("~"):
            raise ConfigError(
                f"override {override!r}: write key=value, with a key of that system's",
                code=Code.OVERRIDE_FORM,
            )
        if key.startswith("~"):
            _remove(read.values, name)
        elif _FROM_SHELL.search(text):
            _remove(
                read.values, name
            )  # the override replaces the YAML's value, and only the shell knows it
            unresolved[name] = text
        else:
            value = override_value(name, text)
            set_at(read.values, name, value)
            read.own |= set(flatten({name: value}))
    return unresolved


def override_value(key: str, text: str) -> Any:
    """Returns the value as Hydra parses it; text outside Hydra's grammar stays text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    try:
        parsed = OverridesParser.create().parse_override(f"{key}={text}")
        if parsed.is_sweep_override():
            return text
        value = OmegaConf.create({"value": parsed.value()})
    except (HydraException, ValueError):
        return text
    container: Any = OmegaConf.to_container(value, resolve=False)
    inner = container["value"]
    return text if isinstance(inner, str) and "${" in text else inner


def _command_line(words: Sequence[str]) -> CommandLine:
    found = CommandLine()
    option = ""
    for word in words:
        if re.match(r"\d?[<>]", word):
            break
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            if equals:
                found.options[option.replace("_", "-")], option = value, ""
        elif option:
            found.options[option.replace("_", "-")], option = word, ""
        elif _KEY.fullmatch(word.partition("=")[0]) and ("=" in word or word.startswith("~")):
            found.overrides.append(word)
        elif word.startswith("${") and "[" in word:
            found.overrides.append(f"{word.strip('${}')}={word}")
    return found


def _commands(text: str, path: Path) -> list[list[str]]:
    """Returns the words of each command, without their quotes."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if _SEPARATORS.fullmatch(word):
                commands.append([])
            else:
                commands[-1].append(word.replace(_SPACE, " "))
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a shell script that can be read: {error}", code=Code.NOT_CONVERTIBLE
        ) from error
    return commands


def _without_comments(text: str) -> str:
    text = _COMMAND.sub(lambda match: match[0].replace(" ", _SPACE), text)
    lines = text.replace("$(pwd)", ".").splitlines()
    return "\n".join("" if line.lstrip().startswith("#") else line for line in lines)


def _filled(word: str, variables: dict[str, str]) -> str:
    """Replaces `$NAME`, `${NAME}` and `${NAME:-else}`; a name that the script does not set
    stays."""

    def value(match: re.Match[str]) -> str:
        name, other = match[1] or match[2], match[3]
        return variables.get(name, match[0] if other is None else other)

    return _VARIABLE.sub(value, word)


def _remove(values: dict[str, Any], key: str) -> None:
    *sections, name = key.split(".")
    for section in sections:
        values = values.get(section, {})
        if not isinstance(values, dict):
            return
    values.pop(name, None)
