"""Turns pydantic's errors into lines that a person can act on.

math_agent.yaml:7: ajet.rollout.temprature: no such key; did you mean 'temperature'?
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ajet.core.config.overrides import override_key
from ajet.core.config.redacted import redacted_value, shown_override
from ajet.core.config.section import ImportPath
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

MAX_SHOWN = 5


def explained(error: ValidationError, root: type[BaseModel], origin: "Origin") -> ConfigError:
    """Returns an error of one line for one mistake; for several, a line that counts them and the
    first few, indented."""
    details = error.errors(include_url=False)
    # A union has an error for each of its members at one location: the first one is reported.
    mistakes: dict[str, ConfigError] = {}
    for mistake in details:
        location, problem = _location_and_problem(mistake, root, origin)
        is_unknown = mistake["type"] == "extra_forbidden"
        code = Code.UNKNOWN_KEY if is_unknown else Code.WRONG_VALUE
        line = f"{location}: {problem}"
        mistakes.setdefault(location, ConfigError(line, code=code, where=location))
    errors = list(mistakes.values())
    if len(errors) == 1:
        return errors[0]
    more = [f"… and {len(errors) - MAX_SHOWN} more"] if len(errors) > MAX_SHOWN else []
    lines = [f"{len(errors)} mistakes in the config:", *map(str, errors[:MAX_SHOWN]), *more]
    return ConfigError("\n  ".join(lines), code=Code.SEVERAL_MISTAKES, parts=errors)


class Origin:
    """Finds where a key was written: in an override of the command line, or on a line of the
    YAML."""

    def __init__(self, path: Path, overrides: Sequence[str], stage: str | None = None) -> None:
        self.path = path
        self.overrides = overrides
        self.stage = stage

    def of(self, key: str) -> str:
        """Returns ``override 'key=value'`` or ``file.yaml:7``. A key of a stage is looked for there
        first."""
        root = yaml.compose(self.path.read_text(encoding="utf-8"))
        lines = _lines_of(root, key)
        if self.stage is not None and key.startswith("ajet."):
            in_stage = f"ajet.stages.{self.stage}{key.removeprefix('ajet')}"
            stage_lines = _lines_of(root, in_stage)
            # The path in the stage is two names longer ("stages" and the stage), so with two more
            # lines the stage has at least as much of the key as the section above the stages.
            if any(override_key(override) == in_stage for override in self.overrides) or (
                len(stage_lines) >= len(lines) + 2
            ):
                key, lines = in_stage, stage_lines
        for override in self.overrides:
            if override_key(override) == key or override_key(override).startswith(f"{key}."):
                return f"override {shown_override(override)!r}"
        return f"{self.path}:{lines[-1]}" if lines else str(self.path)


def _lines_of(node: yaml.Node | None, key: str) -> list[int]:
    """Returns the line, from 1, of each part of the dotted key, as far as the YAML has them."""
    lines: list[int] = []
    for part in key.split("."):
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        match = next((pair for pair in pairs if pair[0].value == part), None)
        if match is None:
            break
        lines.append(match[0].start_mark.line + 1)
        node = match[1]
    return lines


def _location_and_problem(
    details: ErrorDetails, root: type[BaseModel], origin: Origin
) -> tuple[str, str]:
    """Returns where a mistake is (file or override, and key) and what it is."""
    # List positions are numbers, and a union adds its member's name: a key's path has neither.
    section, keys = _descend(root, [part for part in details["loc"] if isinstance(part, str)])
    key = ".".join(keys)
    location = f"{origin.of(key)}: {key}"
    if details["type"] == "extra_forbidden":
        names = list(section.model_fields)
        candidates = leaves_of_that_name(root, keys) or get_close_matches(keys[-1], names, 1)
        quoted = " or ".join(repr(name) for name in candidates)
        hint = f"did you mean {quoted}?" if candidates else f"there are {', '.join(names)}"
        return location, f"no such key; {hint}"
    if details["type"] == "value_error":  # raised by a validator of ours, in words of ours
        return location, message_of(details)
    value = _short_repr(redacted_value(key, details["input"]))
    if details["type"] == "literal_error":
        choices = re.findall(r"'([^']*)'", details["msg"])
        close = get_close_matches(str(details["input"]), choices, 1)
        if close:
            value += f"; did you mean {close[0]!r}?"
        elif section is not None and ImportPath in get_args(
            section.model_fields[keys[-1]].annotation
        ):
            value += "; a function of your own is file.py->function"
    if details["type"] == "model_type":
        return location, f"a section is expected here, got {value}"
    text = details["msg"]
    if not text.startswith("Input should be "):
        return location, f"{text[:1].lower()}{text[1:]}, got {value}"
    text = text.removeprefix("Input should be ").removeprefix("a valid ").removeprefix("an ")
    return location, f"{text.split(', unable to parse')[0]} is expected, got {value}"


def message_of(details: ErrorDetails) -> str:
    """Returns the message of one mistake, without the words that pydantic puts before the messages
    of our validators."""
    if details["type"] == "value_error":
        return str(details["ctx"]["error"])  # pyright: ignore[reportTypedDictNotRequiredAccess]
    return details["msg"]


def mapping_and_list_problem(
    values: Mapping[str, Any], composed: Mapping[str, Any], origin: Origin, path: str = ""
) -> str | None:
    """Says where `values` has a list in the place of one of `composed`'s sections, or a section in
    the place of a list: these cannot be merged. None where it has neither."""
    for name, value in values.items():
        key, present = f"{path}{name}", composed.get(name)
        if isinstance(present, Mapping) and isinstance(value, list):
            return f"{origin.of(key)}: {key}: a section is expected here, got {_short_repr(value)}"
        if isinstance(present, list) and isinstance(value, Mapping):
            return f"{origin.of(key)}: {key}: a list is expected here, got {_short_repr(value)}"
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            problem = mapping_and_list_problem(value, present, origin, f"{key}.")
            if problem is not None:
                return problem
    return None


def leaves_of_that_name(root: type[BaseModel], keys: Sequence[str]) -> list[str]:
    """Returns the keys elsewhere in the tree whose last name is that of `keys`, the nearest ones,
    written from their common section on; nothing where more than two are equally near."""
    paths = [path for path in _leaf_paths(root, ()) if path[-1] == keys[-1]]
    if not paths:
        return []
    # Near is to share the most sections from the root, then to be the shortest.
    shared = [
        len(list(takewhile(lambda pair: pair[0] == pair[1], zip(path, keys, strict=False))))
        for path in paths
    ]
    nearest = [path for path, num in zip(paths, shared, strict=True) if num == max(shared)]
    nearest = [path for path in nearest if len(path) == min(map(len, nearest))]
    nearest.sort(key=lambda path: "critic" in path)  # the policy's setting is meant more often
    # A path from the mistyped key's section on reads better, and is right only if all of that
    # section is shared.
    from_section = max(shared) == len(keys) - 1
    names = [".".join(path[max(shared) :] if from_section else path) for path in nearest]
    return names if len(names) <= 2 else []


def _leaf_paths(section: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _leaf_paths(inner, (*path, name))
        else:
            yield (*path, name)


def _descend(root: type[BaseModel], names: list[str]) -> tuple[type[BaseModel], list[str]]:
    """Returns the section that holds the last key of the path, and the path without a union's
    members."""
    section = root
    keys: list[str] = []
    remaining = list(names)
    while remaining:
        name = remaining.pop(0)
        keys.append(name)
        if name not in section.model_fields or not remaining:
            break
        inner: Any = section.model_fields[name].annotation
        if get_origin(inner) is dict and _is_section(get_args(inner)[1]):
            keys.append(remaining.pop(0))  # the name that the user chose, as a tag of custom_envs
            inner = get_args(inner)[1]
        if not _is_section(inner) or not remaining:
            break
        section = inner
    return section, keys


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _short_repr(value: Any) -> str:
    if value is None:
        return "null"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
