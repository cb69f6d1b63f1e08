"""Writes a conversion as YAML: a head with what was left out and why, then our keys with their
origins in comments.
"""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from ajet.convert.draft import Category, Conversion, OmittedKey
from ajet.convert.source import unflatten
from ajet.core.config.compose import BLANK
from ajet.core.config.tree import AjetConfig

WIDTH = 100
HEADINGS: dict[Category, str] = {
    "algorithm": "Left out, and it changes the algorithm:",
    "unknown": "Not known to ajet, left out:",
    "machine": "Left out, has no counterpart or no effect here:",
}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(result: Conversion) -> str:
    values = result.values | dict.fromkeys(result.blanks, BLANK)
    tree = _ordered(unflatten(values), AjetConfig().model_dump()) | result.sections
    origins = result.origins | result.blanks
    return "\n".join([*_head(result), "", *_section(tree, "", 0, origins), ""])


def _head(result: Conversion) -> Iterator[str]:
    yield f"# Converted from {result.system}'s {result.source} by `ajet convert`."
    blanks = [f"write a value at each {BLANK} below: {', '.join(result.blanks)}"]
    if to_do := [*(blanks if result.blanks else []), *result.to_do]:
        yield from ["#", "# To do:"]
        for text in to_do:
            yield from _comment(" ".join(text.split()), "#   ", "#     ")
    for category, heading in HEADINGS.items():
        if entries := result.of(category):
            yield from ["#", f"# {heading}"]
            for text in grouped(entries):
                yield from _comment(" ".join(text.split()), "#   ", "#     ")


def grouped(entries: list[OmittedKey]) -> Iterator[str]:
    """Yields one text for each reason, with its keys."""
    by_reason: dict[str, list[str]] = {}
    for entry in entries:
        by_reason.setdefault(entry.reason, []).append(entry.shown)
    for reason, keys in by_reason.items():
        yield f"{'; '.join(keys)}: {reason}"


def _comment(text: str, indent: str, later: str) -> list[str]:
    """Returns the lines of a comment; `later` is the indentation of all but the first."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _section(
    values: Mapping[str, Any], prefix: str, depth: int, origins: Mapping[str, str]
) -> Iterator[str]:
    indent = "  " * depth
    for key, value in values.items():
        name = f"{prefix}{key}"
        # A mapping without origins below it is a value, such as an environment's env_config.
        is_leaf = name in origins or not any(origin.startswith(f"{name}.") for origin in origins)
        if is_leaf:
            origin = origins.get(name)
            yield from _leaf(str(key), value, indent, None if origin == name else origin)
        else:
            yield f"{indent}{key}:"
            yield from _section(value, f"{name}.", depth + 1, origins)


def _leaf(key: str, value: Any, indent: str, origin: str | None) -> Iterator[str]:
    dumped = yaml.dump(
        {key: _escaped(value)},
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None if isinstance(value, list | dict) and value else False,
        width=WIDTH,
    )
    lines = [f"{indent}{line}".rstrip() for line in dumped.rstrip("\n").split("\n")]
    if origin is None:
        yield from lines
    elif len(lines) == 1 and len(lines[0]) + len(origin) < WIDTH:
        yield f"{lines[0]}  # {origin}"
    else:
        yield from _comment(origin, f"{indent}# ", f"{indent}# ")
        yield from lines


def _ordered(values: Mapping[str, Any], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values in the order of ajet's config tree, unknown keys last."""
    names = [name for name in tree if name in values]
    result: dict[str, Any] = {}
    for name in [*names, *(name for name in values if name not in tree)]:
        value, below = values[name], tree.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = _ordered(value, below)
        result[name] = value
    return result


def _escaped(value: Any) -> Any:
    """Returns the value with interpolations in its texts escaped, because they are plain text."""
    if isinstance(value, str):
        return value.replace("${", "\\${")
    if isinstance(value, Mapping):
        return {key: _escaped(inner) for key, inner in value.items()}
    return [_escaped(inner) for inner in value] if isinstance(value, list) else value
