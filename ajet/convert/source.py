"""Reads the other system's config as plain data. Interpolations are resolved within the file;
others, such as ${oc.env:MODEL}, stay unresolved. Hydra's groups and packages are not supported:
files in `defaults:` that exist next to this one are merged below it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ajet.core.config.compose import read_yaml
from ajet.core.config.nested import flatten, merge, texts
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_FOREIGN = re.compile(r"\$\{\s*(oc\.env|now|hydra)\b")


class NotConvertible(ConfigError):
    """Raised when a file is not a config that can be converted."""

    usual_code = Code.NOT_CONVERTIBLE


@dataclass
class SourceConfig:
    """The content of a file. `resolve` fills `unresolved` and `referenced`."""

    values: dict[str, Any] = field(default_factory=dict)
    explicit: set[str] = field(default_factory=set)  # keys in the file itself or the overrides
    missing: list[str] = field(default_factory=list)  # entries of `defaults:` that were not found
    shipped: list[str] = field(default_factory=list)  # files of the system's own that it builds on
    unresolved: dict[str, str] = field(default_factory=dict)  # key -> its unresolved text
    referenced: set[str] = field(default_factory=set)  # keys that are used as variables by others


def read_file(
    path: Path, known_defaults: Sequence[str], seen: tuple[Path, ...] = ()
) -> SourceConfig:
    """Reads a YAML and merges it with the files of its `defaults:`. `known_defaults` are names that
    the system itself ships."""
    if path.resolve() in seen:
        raise ConfigError(f"{path}: defaults: this file includes itself", code=Code.CONVERT_VALUE)
    written = read_yaml(path)
    entries = written.pop("defaults", None) or []
    if not isinstance(entries, list):
        raise ConfigError(
            f"{path}: defaults: a list is expected, got {entries!r}", code=Code.CONVERT_VALUE
        )
    read = SourceConfig(explicit=set(flatten(written)))
    below, above = _included(entries, path, known_defaults, (*seen, path.resolve()), read)
    read.values = merge(merge(below, written), above)
    return read


def resolve(read: SourceConfig) -> None:
    """Resolves the interpolations; those that refer to nothing in the file stay unresolved."""
    from omegaconf import OmegaConf

    read.referenced = {name for text in texts(read.values) for name in REFERENCE.findall(text)}
    inside = _without_foreign(read.values, "", read.unresolved)
    read.values = _plain(OmegaConf.create(inside), "", read.unresolved)


def unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested form of a flat mapping; the inverse of `flatten`."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        set_at(result, key, value)
    return result


def set_at(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets the dotted key; values on the way that are not sections are replaced by sections."""
    *sections, name = key.split(".")
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            inner = values[section] = {}
        values = inner
    values[name] = value


def _included(
    entries: list[Any],
    path: Path,
    known: Sequence[str],
    seen: tuple[Path, ...],
    result: SourceConfig,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the entries before and after `_self_`, merged; `result` gets the names of those that
    are not here."""
    # Hydra merges entries before `_self_` below the file, and those after it above.
    halves: list[dict[str, Any]] = [{}, {}]
    half = 0
    for entry in entries:
        if entry == "_self_":
            half = 1
            continue
        name = str(entry).partition("@")[0]
        file = path.parent / (name if name.endswith(".yaml") else f"{name}.yaml")
        if file.is_file():
            read = read_file(file, known, seen)
            halves[half] = merge(halves[half], read.values)
            result.missing += read.missing
            result.shipped += read.shipped
        elif any(fnmatchcase(Path(name).name, pattern) for pattern in known):
            result.shipped.append(name)
        else:
            result.missing.append(name)
    return halves[0], halves[1]


def _plain(node: Any, prefix: str, unresolved: dict[str, str]) -> Any:
    """Returns the node as plain data; unresolvable values are noted under their keys instead."""
    from omegaconf import DictConfig, ListConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not isinstance(node, DictConfig | ListConfig):
        return node
    written: Any = OmegaConf.to_container(node, resolve=False)
    values: dict[Any, Any] = {}
    for key in written if isinstance(written, dict) else range(len(written)):
        name = f"{prefix}{key}"
        try:
            inner = node[key]
        except OmegaConfBaseException:
            unresolved[name] = str(written[key])
            continue
        values[key] = _plain(inner, f"{name}.", unresolved)
    return list(values.values()) if isinstance(node, ListConfig) else values


def _is_readable(text: str) -> bool:
    """Returns False for a text that starts an interpolation but is not one: ``${X:?message}``."""
    from omegaconf import OmegaConf
    from omegaconf.errors import GrammarParseError

    try:
        OmegaConf.create({"text": text})
    except GrammarParseError:
        return False
    return True


def _without_foreign(value: Any, prefix: str, unresolved: dict[str, str]) -> Any:
    """Returns the value without interpolations that no file can resolve, namely environment
    variables (which may be secret) and the time, and without those that OmegaConf cannot parse."""
    if not isinstance(value, Mapping):
        return value
    remaining: dict[str, Any] = {}
    for key, inner in value.items():
        name = f"{prefix}{key}"
        if isinstance(inner, str) and (_FOREIGN.search(inner) or not _is_readable(inner)):
            unresolved[name] = inner
        else:
            remaining[key] = _without_foreign(inner, f"{name}.", unresolved)
    return remaining
