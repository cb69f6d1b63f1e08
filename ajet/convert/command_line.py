"""Reads a shell script that starts another system: its config file and its overrides. bash itself
runs the script (script_runs.py), so the words are those that the system would get. It runs several
times, with different values for what is only known at run time: a value that differs between the
runs, or contains such a value, is unknown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ajet.convert.script_runs import Run, ScriptRuns
from ajet.convert.source import NotConvertible, SourceConfig, set_at
from ajet.core.config.nested import flatten, get_key, merge
from ajet.core.errors import ConfigError, OptionError
from ajet.core.errors.codes import Code

_KEY = re.compile(r"[+~]{0,2}[A-Za-z_][\w.@/-]*")
_OTHER_JOBS = re.compile(r"sft|generation|eval|merger|preprocess|checkpoint")
"""Parts of the names of modules that do not train, or not by reinforcement."""
_AT_HOME = re.compile(r"(?<=[\[,:\s])(~/[^\s,\]}]+)")
"""An element of a list or mapping that begins with ``~``, as ajet writes the home folder. In bash's
whole path Hydra needs no quotes."""
_SHORT = {"-cn": "--config-name", "-cp": "--config-path", "-cd": "--config-dir"}
_MOST_SHOWN, _MOST_LISTED = 4, 12


@dataclass
class CommandLine:
    """One call of the other system. `unknown` has the keys whose values are only known when the
    script really runs, with the known parts of their values."""

    module: str = ""
    options: dict[str, str] = field(default_factory=dict)  # such as --config-file x
    overrides: list[str] = field(default_factory=list)  # key=value, as bash passes them
    unknown: dict[str, str] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)  # neither options nor overrides
    to_do: list[str] = field(default_factory=list)

    @property
    def values(self) -> dict[str, str]:
        """Returns the text of each option and key; the last one of a key counts."""
        pairs = (override.partition("=") for override in self.overrides if "=" in override)
        return self.options | {key: value for key, _, value in pairs}


def read_script(path: Path, entry: Sequence[str], launch: int = 1) -> CommandLine:
    """Returns call number `launch` of a module or file whose name contains one of `entry`, or that
    takes a key which begins with one."""
    runs = ScriptRuns(path)
    with runs:
        # Each attempt assumes more about the outside, until one starts the system.
        for attempt in (runs.as_it_stands, runs.with_required_values, runs.with_files):
            launches = [_launches(run, entry) for run in attempt()]
            if any(launches) or runs.plain.exit_code is None:
                break
    listed = next((calls for calls in launches if calls), None)
    if listed is None:
        raise NotConvertible(_nothing_started(path, entry, runs))
    if launch > len(listed):
        raise OptionError(f"{path}: --launch {launch}: it starts {_counted(listed, runs)}")
    # Runs with other values for what is unknown may start fewer trainings.
    chosen = [calls[launch - 1] for calls in launches if len(calls) >= launch]
    line = chosen[0]
    if _OTHER_JOBS.search(line.module):
        raise NotConvertible(
            f"{path}: it starts {line.module}, which is not a reinforcement training; give the "
            "script that starts one"
        )
    if len({tuple(call.values.items()) for call in listed}) > 1:
        line.to_do.append(
            f"{path.name} starts {_counted(listed, runs)}: number {launch} is converted, and "
            "--launch takes another"
        )
    line.unknown = _unknown(chosen, runs)
    all_set = [_launches(run, entry) for run in runs.if_all_were_set]
    set_calls = [calls[launch - 1] for calls in all_set if len(calls) >= launch]
    line.unknown |= _empty_from_outside(line, set_calls, runs)
    line.overrides = [o for o in line.overrides if o.partition("=")[0] not in line.unknown]
    line.options = {key: text for key, text in line.options.items() if key not in line.unknown}
    # In the others these may be variables that are not set, which add nothing.
    if any(map(runs.num_unknown, line.words)):
        line.to_do.append(
            "some arguments are not known, such as those of a file: give what they set as key=value"
        )
    for name in runs.plain.not_here:
        line.to_do.append(f"{path.name} reads {name}, which is not here: what it sets is missing")
    if runs.needs_files:
        line.to_do.append(
            f"{path.name} starts the training only where files exist that it looks for: it was "
            "read as if they did"
        )
    return line


def _unknown(calls: Sequence[CommandLine], runs: ScriptRuns) -> dict[str, str]:
    """Returns the keys whose values differ between the runs, or contain something unknown."""
    unknown: dict[str, str] = {}
    values = [call.values for call in calls]
    for key in dict.fromkeys(key for texts_of_call in values for key in texts_of_call):
        texts = [texts_of_call.get(key) for texts_of_call in values]
        marked = max(texts, key=lambda text: runs.num_unknown(text or ""))
        if runs.num_unknown(key):  # the key itself contains an unknown value
            continue
        if marked and runs.num_unknown(marked):
            unknown[key] = runs.without_unknown(marked)
        elif len(set(texts)) > 1:
            unknown[key] = "…"
    return unknown


def _empty_from_outside(
    line: CommandLine, calls: Sequence[CommandLine], runs: ScriptRuns
) -> dict[str, str]:
    """Returns the keys that lack the value of a variable or argument that only `calls` set."""
    empty: dict[str, str] = {}
    for call in calls:
        for key, text in line.values.items():
            text_if_set = call.values.get(key, text)
            if text_if_set != text and runs.without_unknown(text_if_set, "") == text:
                empty[key] = runs.without_unknown(text_if_set)
    return empty


def _counted(calls: Sequence[CommandLine], runs: ScriptRuns) -> str:
    """Returns how many trainings these are, with a numbered list of the values that differ."""
    if len(calls) == 1:
        return "1 training"
    texts = [call.values for call in calls]
    keys = dict.fromkeys(key for values in texts for key in values)
    differ = [key for key in keys if len({values.get(key) for values in texts}) > 1]
    listed = []
    for number, values in enumerate(texts[:_MOST_LISTED], 1):
        pairs = [
            f"{key}={runs.without_unknown(values[key])}"
            for key in differ[:_MOST_SHOWN]
            if key in values
        ]
        more = [f"and {len(differ) - _MOST_SHOWN} more"] if len(differ) > _MOST_SHOWN else []
        listed.append(f"{number}: {', '.join(pairs + more)}")
    rest = ["…"] if len(texts) > _MOST_LISTED else []
    return f"{len(calls)} trainings ({'; '.join(listed + rest)})"


def _nothing_started(path: Path, entry: Sequence[str], runs: ScriptRuns) -> str:
    run = runs.plain
    ended = ", bash was stopped, since it did not finish" if run.exit_code is None else ""
    if run.exit_code:
        ended = f", bash ended with {run.exit_code}"
        ended += f" ({run.error})" if run.error else ""
    if run.exit_code and runs.takes_arguments:
        return (
            f"{path}: no command here calls {entry[0].strip('.')}{ended}; it reads arguments: "
            f"convert a script that calls it with them (bash {path.name} ARGUMENT …)"
        )
    return (
        f"{path}: no command here calls {entry[0].strip('.')}{ended}; give the YAML itself, or the "
        "script that starts the training"
    )


def with_overrides(
    read: SourceConfig, overrides: Sequence[str], unknown: Mapping[str, str]
) -> dict[str, str]:
    """Applies the overrides to the source, and returns what stays unknown. `unknown` replaces the
    values of a YAML, and overrides replace both."""
    unresolved = {key.lstrip("+~"): text for key, text in unknown.items()}
    for key in unresolved:
        _remove(read.values, key)
    for override in overrides:
        key, sign, text = override.partition("=")
        name = key.lstrip("+~")
        if not sign and not key.startswith("~"):
            raise ConfigError(
                f"override {override!r}: write key=value, with a key of the other system",
                code=Code.OVERRIDE_FORM,
            )
        # An override replaces the value that is not known.
        unresolved.pop(name, None)
        if key.startswith("~"):
            _remove(read.values, name)
        else:
            value = override_value(name, text)
            old = get_key(read.values, name)
            if isinstance(value, dict) and isinstance(old, dict):  # Hydra merges mappings
                value = merge(old, value)
            set_at(read.values, name, value)
            read.explicit |= set(flatten({name: value}))
    return unresolved


def override_value(key: str, text: str) -> Any:
    """Returns the value as Hydra parses it; text outside Hydra's grammar stays text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    try:
        quoted = _AT_HOME.sub(r"'\1'", text)
        parsed = OverridesParser.create().parse_override(f"{key}={quoted}")
        if parsed.is_sweep_override():
            return text
        value = OmegaConf.create({"value": parsed.value()})
    except (HydraException, ValueError):
        return text
    container: Any = OmegaConf.to_container(value, resolve=False)
    inner = container["value"]
    return text if isinstance(inner, str) and "${" in text else inner


def _launches(run: Run, entry: Sequence[str]) -> list[CommandLine]:
    """Returns the trainings that one run of the script starts, or else all calls of the system."""
    calls: list[CommandLine] = []
    for words in run.commands:
        for position, word in enumerate(words):
            is_python = words[position - 1] == "-m" or word.endswith(".py")
            arguments = words[position + 1 :]
            if (is_python or position == 0) and any(part in word for part in entry):
                break
            # A program of the user's own takes the system's keys.
            keys = [argument.lstrip("+~") for argument in arguments if "=" in argument]
            if is_python and any(key.startswith(part) for key in keys for part in entry):
                break
        else:
            continue
        calls.append(_command_line(word, arguments))
    trainings = [call for call in calls if call.values and not _OTHER_JOBS.search(call.module)]
    # A program of the system that prepares rows has options alone.
    return [call for call in trainings if call.overrides] or trainings or calls


def _command_line(module: str, words: Sequence[str]) -> CommandLine:
    line = CommandLine(module)
    option = ""
    for word in words:
        is_override = "=" in word or word.startswith("~")
        if word.startswith("-"):
            option, equals, value = word.partition("=")
            option = _SHORT.get(option, option).replace("_", "-")
            if equals:
                line.options[option], option = value, ""
        elif is_override and _KEY.fullmatch(word.partition("=")[0]):
            # Also after an option without a value, such as `--`.
            line.overrides.append(word)
        elif option:
            line.options[option], option = word, ""
        else:
            line.words.append(word)
    return line


def _remove(values: dict[str, Any], key: str) -> None:
    *sections, name = key.split(".")
    for section in sections:
        values = values.get(section, {})
        if not isinstance(values, dict):
            return
    values.pop(name, None)
