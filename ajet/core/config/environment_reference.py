"""Finds values that a YAML takes from the environment, and reads them again later.

    api_key: ${oc.env:OPENAI_API_KEY}            ->  {"mine.api_key": "${oc.env:OPENAI_API_KEY}"}
    authorization: Bearer ${oc.env:TOKEN,none}   ->  "Bearer ${oc.env:TOKEN}", if TOKEN is set

A run folder stores the reference in the place of the value, without its default, which may be a
secret too. Texts with anything around the reference but an authorization scheme are not found.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_WRITTEN = re.compile(
    r"((?:Bearer|Basic|Token|token) )?\$\{oc\.env:\s*['\"]?([A-Za-z_]\w*)['\"]?\s*(?:,[^${}]*)?\}"
)
_STORED = re.compile(r"((?:Bearer|Basic|Token|token) )?\$\{oc\.env:([A-Za-z_]\w*)\}")
_OTHER_KEY = re.compile(r"\$\{([\w-]+(?:\.[\w-]+)*)\}")
MAX_STEPS = 16


def environment_references(written: Any) -> dict[str, str]:
    """Returns the references in unresolved data, by the dotted paths of their values. A key that
    refers to such a key has its reference."""
    texts = dict(_texts(written))
    references = {}
    for path, text in texts.items():
        for _ in range(MAX_STEPS):  # keys that refer to each other in a circle
            if (key := _OTHER_KEY.fullmatch(text)) is None:
                break
            text = texts.get(key[1], "")
        match = _WRITTEN.fullmatch(text)
        if match is not None and match[2] in os.environ:
            references[path] = f"{match[1] or ''}${{oc.env:{match[2]}}}"
    return references


def stored_references(stored: Any) -> dict[str, str]:
    """Returns the references in stored data, by the dotted paths of their values."""
    return {path: text for path, text in _texts(stored) if is_reference(text)}


def variable_of(reference: str) -> str:
    match = _STORED.fullmatch(reference)
    assert match is not None, reference
    return match[2]


def is_reference(value: Any) -> bool:
    return isinstance(value, str) and _STORED.fullmatch(value) is not None


def resolved(value: Any) -> Any:
    """Returns stored data with the values of references whose variables are set; others stay."""
    if isinstance(value, Mapping):
        return {key: resolved(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolved(inner) for inner in value]
    match = _STORED.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in os.environ:
        return value
    return f"{match[1] or ''}{os.environ[match[2]]}"


def _texts(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    pairs: Any = ()
    if isinstance(value, Mapping):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    elif isinstance(value, str):
        yield path, value
    for key, inner in pairs:
        yield from _texts(inner, f"{path}.{key}" if path else str(key))
