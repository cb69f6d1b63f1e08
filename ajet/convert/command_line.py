"""Reads a shell script that starts another system: its config file and its overrides.

    export exp=math
    DATA=(data.train_batch_size=256)
    python -m verl.trainer.main_ppo \\                  entry: the word that holds `verl.`
        "${DATA[@]}" \\                                 elements of an array
        trainer.n_gpus_per_node=8 \\                    override
        trainer.experiment_name=${exp} "$@"             variables of the script are put in

Not covered: what loops and conditions assign (`[ -n "$X" ] && Y=1` too), what a command prints;
such a value is unresolved.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ajet.convert.source import SourceConfig, set_at
from ajet.core.config.nested import flatten
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ARRAY = re.compile(r"([A-Za-z_]\w*)(\+?)=\((.*)", re.DOTALL)
_ELEMENTS = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^{}]*))?\})")
_COMMENT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<!\S)\#[^\n]*""", re.DOTALL)
"""A comment, or what a # is no comment in."""
_FROM_SHELL = re.compile(r"\$[\w(@*#?!]|\$\{\w+\W*\}|\$\{[^}]*(\[|:-)|`")
_COMMAND = re.compile(r"\$\([^()\n]*\)")
_SPACE = "\u00a0"  # keeps $(date +%F) one word
_DOLLAR = "\ue000"  # a $ that is in a value already, and is not looked at again
_SEPARATORS = re.compile(r"[;|&\n]+")
_SUCCEEDS = {".", ":", "cd", "declare", "echo", "export", "mkdir", "set", "source"}
"""Commands behind which `&&` is no condition: a script whose `cd` fails is lost anyway."""
_BLOCK_BEGINS, _BLOCK_ENDS = {"if", "case", "for", "while", "until"}, {"fi", "esac", "done"}
_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*")


@dataclass
class CommandLine:
    """One call of the other system."""

    options: dict[str, str] = field(default_factory=dict)  # such as --config-file x
    overrides: list[str] = field(default_factory=list)  # key=value, as the shell passes them


@dataclass(frozen=True)
class ScriptCommand:
    """The words of one command; `is_conditional` where it runs only if others end well, or do
    not: `[ -n "$X" ] && Y=1`."""

    words: list[str]
    is_conditional: bool


def read_script(path: Path, entry: Sequence[str]) -> CommandLine:
    """Returns the first command of the script in which a word contains one of `entry`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", code=Code.NOT_CONVERTIBLE) from error
    variables = ScriptVariables()
    for command in _commands(_without_comments(text), path):
        if variables.read_array(command):
            continue
        words = variables.expand(command.words)
        start = next((i for i, word in enumerate(words) if any(e in word for e in entry)), None)
        if start is not None:
            return _command_line(words[start + 1 :])
        variables.read(replace(command, words=words))
    names = " or ".join(each.strip(".") for each in entry)
    raise ConfigError(
        f"{path}: no command here calls {names}; give the YAML itself, or the script that starts "
        "the training",
        code=Code.NOT_CONVERTIBLE,
    )


class ScriptVariables:
    """The variables and arrays that the script has assigned so far. A name that is assigned within
    a condition or a loop stands for itself, since only the shell knows its value."""

    def __init__(self) -> None:
        self._values = {"HOME": "~", "PWD": "."}
        self._arrays: dict[str, list[str]] = {}
        self._open: str | None = None  # the array whose elements follow
        self._open_is_sure = True
        self._depth = 0  # of conditions and loops

    def expand(self, words: Sequence[str]) -> list[str]:
        """Puts in the values of variables, and the elements of arrays."""
        expanded: list[str] = []
        for word in words:
            array = _ELEMENTS.fullmatch(word)
            if array is not None and array[1] in self._arrays:
                expanded += self._arrays[array[1]]
            else:
                expanded.append(_filled(word, self._values))
        return expanded

    def read(self, command: ScriptCommand) -> None:
        """Takes the assignments of a command, and where a condition or a loop begins or ends."""
        words = command.words
        if _BLOCK_BEGINS & set(words[:2]):  # the second word behind else, do or a pattern
            self._depth += 1
        elif _BLOCK_ENDS & set(words[:1]):
            self._depth = max(0, self._depth - 1)
        is_sure = not (self._depth or command.is_conditional)
        for word in words:
            if match := _ASSIGNMENT.fullmatch(word):
                name, value = match.groups()
                self._values[name] = value if is_sure else f"${{{name}}}"

    def read_array(self, command: ScriptCommand) -> bool:
        """Takes the elements of an array, which may go on over several lines; returns False if the
        words are not of one."""
        words = command.words
        if self._open is None:
            heads = [i for i, word in enumerate(words[:2]) if _ARRAY.fullmatch(word)]
            if not heads:
                return False
            self._open_is_sure = not (self._depth or command.is_conditional)
            words = self._begin_array(words[heads[0] :])
        for word in words:
            closes = word.count(")") > word.count("(")
            element, ends, _ = word.rpartition(")") if closes else (word, "", "")
            if element and self._open_is_sure:
                self._elements.extend(self.expand([element]))
            if ends:
                self._open = None
                break
        return True

    def _begin_array(self, words: Sequence[str]) -> list[str]:
        """Returns the first elements of the array that the first word begins."""
        match = _ARRAY.fullmatch(words[0])
        assert match is not None
        name, added, first = match.groups()
        self._open = name
        if not added:
            self._arrays[name] = []
        if not self._open_is_sure:
            self._elements.append(f"${{{name}[@]}}")
        return [first, *words[1:]]

    @property
    def _elements(self) -> list[str]:
        assert self._open is not None
        return self._arrays.setdefault(self._open, [])


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


def _commands(text: str, path: Path) -> Iterator[ScriptCommand]:
    """Yields the commands, their words without quotes. Those in braces behind a condition are
    conditional too."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";|&\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    is_conditional, braces = False, list[bool]()
    try:
        for word in [*lexer, "\n"]:
            if not _SEPARATORS.fullmatch(word):
                words.append(word.replace(_SPACE, " "))
                continue
            if not words:  # a line that goes on behind && or ||
                continue
            if words[0] == "{":
                braces.append(is_conditional)
            yield ScriptCommand(words, is_conditional or any(braces))
            if words[0] == "}" and braces:
                braces.pop()
            operator = word.strip("\n")
            succeeds = words[0] in _SUCCEEDS or all(map(_ASSIGNMENT.fullmatch, words))
            if operator == "||" or (operator == "&&" and not succeeds):
                is_conditional = True
            elif operator not in ("&&", "|"):
                is_conditional = False
            words = []
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a shell script that can be read: {error}", code=Code.NOT_CONVERTIBLE
        ) from error


def _without_comments(text: str) -> str:
    text = _COMMENT.sub(lambda match: "" if match[0].startswith("#") else match[0], text)
    text = _COMMAND.sub(lambda match: match[0].replace(" ", _SPACE), text)
    return text.replace("$(pwd)", ".")


def _filled(word: str, variables: dict[str, str]) -> str:
    """Replaces `$NAME`, `${NAME}` and `${NAME:-else}`, the innermost first; a name that the script
    does not set stays."""

    def value(match: re.Match[str]) -> str:
        name, other = match[1] or match[2], match[3]
        found = variables.get(name)
        if other is not None and not found:
            return other
        return (match[0] if found is None else found).replace("$", _DOLLAR)

    while (filled := _VARIABLE.sub(value, word)) != word:
        word = filled
    return word.replace(_DOLLAR, "$")


def _remove(values: dict[str, Any], key: str) -> None:
    *sections, name = key.split(".")
    for section in sections:
        values = values.get(section, {})
        if not isinstance(values, dict):
            return
    values.pop(name, None)
