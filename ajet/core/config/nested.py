"""Reads nested mappings and lists: by dotted keys, and text by text."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

Node = TypeVar("Node", bound=BaseModel | dict[str, Any])


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a flat mapping from dotted keys to values; lists and empty sections are values."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `below` overridden by `above`, section by section."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merge(old, value)
        result[key] = value
    return result


def get_key(values: Any, key: str) -> Any:
    """Returns the value of a dotted key; None where it, or a section on the way, is missing."""
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def set_key(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key, and makes missing sections on the way to it. It does nothing where a value
    is in the place of a section, which the tree reports."""
    *sections, name = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            return
    values[name] = value


def with_values(node: Node, changed: Mapping[str, Any]) -> Node:
    """Returns a copy of a config, a section or nested dicts with the values of these dotted keys
    replaced. Nothing is checked."""
    result: Any = node
    for key, value in changed.items():
        first, _, rest = key.partition(".")
        is_model = isinstance(result, BaseModel)
        if rest:
            inner = getattr(result, first) if is_model else result[first]
            value = with_values(inner, {rest: value})
        update = {first: value}
        result = result.model_copy(update=update) if is_model else type(result)(result | update)
    return result


def texts(value: Any) -> Iterator[str]:
    """Yields every text in the mappings and lists below `value`, but no keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)
