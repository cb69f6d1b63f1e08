"""Shows a config without secrets, as run folders, trackers, notices and errors have it.

    ajet.model.path, trinity.staleness        defined by ajet: shown, without logins in addresses
    ….deduplication.params.api_key            defined as `Secret`: ***
    ajet.….env_config, frozen_lake.map_name   the user's own keys: `FreeForm` of text/redaction.py

A secret that the YAML takes from the environment appears as ``${oc.env:NAME}``, which saved.py
reads back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ajet.core.config.section import Secret, Section
from ajet.core.config.tracing import FILTERS
from ajet.core.config.tree import AjetConfig
from ajet.core.text.redaction import REDACTED, FreeForm, is_kept, remember_secrets

KNOWN_SECTIONS = ("suite.*", "tau2.*", "harbor.*")
"""Top-level sections that packages of ajet define, and which have no secrets."""
FILTER_LIST = "ajet.task_reader.tracing.filters"
_WRITTEN = re.compile(
    r"((?:Bearer|Basic|Token|token) )?\$\{oc\.env:\s*['\"]?([A-Za-z_]\w*)['\"]?\s*(?:,[^${}]*)?\}"
)
_STORED = re.compile(r"((?:Bearer|Basic|Token|token) )?\$\{oc\.env:([A-Za-z_]\w*)\}")
_OTHER_KEY = re.compile(r"\$\{([\w-]+(?:\.[\w-]+)*)\}")
MAX_STEPS = 16


def redacted_config(config: AjetConfig) -> dict[str, Any]:
    """Returns the config as plain data without secrets."""
    return _redacted(config, _free_form(config))


class _FreeFormKept(FreeForm):
    def redacted(self, value: Any, *path: str) -> Any:
        return self.allowed(value, *path)


def config_without_secrets(config: AjetConfig) -> dict[str, Any]:
    """Returns the config as plain data in which only values with a secret's key or form are
    replaced. It is for hashes, not for showing: other texts under the user's keys may be secret."""
    return _redacted(config, _FreeFormKept(config.ajet.not_secret, config.references))


def remember_secrets_of(config: AjetConfig) -> None:
    """Lets this process remove the config's secrets from its log lines and errors."""
    free_form = _free_form(config)
    _redacted(config, free_form)
    remember_secrets(free_form.secrets)


def redacted_value(key: str, value: Any, not_secret: Sequence[str] = ()) -> Any:
    """Returns the value of a key, as a message may show it."""
    # Descends the tree as far as it defines the key. Below that, and in sections of the user's,
    # the value is free-form.
    model: Any = AjetConfig
    path = key.split(".")
    free_form = FreeForm(not_secret)
    for depth, name in enumerate(path, 1):
        field = model.model_fields.get(name)
        if field is None and depth > 1:  # a mistyped key in a section of ajet's, which is refused
            return free_form.allowed(value, *path)
        if field is None:
            break
        if depth == len(path):
            return _field(field, value, tuple(path), free_form)
        model = _section_of(field.annotation)
        if model is None:
            break
    return free_form.redacted(value, *path)


def shown_override(override: str, not_secret: Sequence[str] = ()) -> str:
    """Returns an override of the command line without its secret: ``my.api_key=***``."""
    key, equals, text = override.partition("=")
    name = key.lstrip("+~").split("@", 1)[0]
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):  # too many digits, too deep
        value = text
    if value is None or redacted_value(name, value, not_secret) == value:
        return override
    # Text is redacted as it was written; the parts of a list or a mapping cannot be found in it.
    redacted = redacted_value(name, text, not_secret)
    return f"{key}{equals}{redacted if isinstance(value, str) else REDACTED}"


def shown_overrides(overrides: Sequence[str], not_secret: Sequence[str] = ()) -> list[str]:
    """Returns overrides of the command line without their secrets."""
    return [shown_override(override, not_secret) for override in overrides]


def redacted_keys(values: Any, key: str = "", *, except_for: Sequence[str] = ()) -> Iterator[str]:
    """Yields the keys whose values were not stored: ``***``, a login of ``***``, or a reference to
    the environment that was not resolved. A list is one key."""
    if isinstance(values, Mapping):
        for name, inner in values.items():
            path = f"{key}.{name}" if key else str(name)
            yield from redacted_keys(inner, path, except_for=except_for)
    elif not is_kept(key, except_for):
        for element in values if isinstance(values, list) else [values]:
            if isinstance(element, Mapping | list):
                is_redacted = next(redacted_keys(element), None) is not None
            else:
                is_redacted = isinstance(element, str) and (
                    element == REDACTED or f"://{REDACTED}@" in element or is_reference(element)
                )
            if is_redacted:
                yield key
                break


def _free_form(config: AjetConfig) -> FreeForm:
    return FreeForm([*config.ajet.not_secret, *KNOWN_SECTIONS], config.references)


def _redacted(config: AjetConfig, free: FreeForm) -> dict[str, Any]:
    """Returns the config as plain data: fields of the tree by their definitions, and whatever ajet
    does not define by `free`, which also collects what it replaced."""
    return _section(AjetConfig, config.to_dict(), (), free)


def _section(model: Any, values: Mapping[str, Any], path: tuple[str, ...], free: FreeForm) -> Any:
    return {
        name: _field(model.model_fields[name], value, (*path, name), free)
        if name in model.model_fields
        else free.redacted(value, *path, name)
        for name, value in values.items()
    }


def _field(field: FieldInfo, value: Any, path: tuple[str, ...], free: FreeForm) -> Any:
    """Returns the value of a key that ajet defines, as a free-form one where the definition leaves
    its form open (`env_config`)."""
    if any(mark is Secret or isinstance(mark, Secret) for mark in field.metadata):
        return free.secret(value, *path)
    if ".".join(path) == FILTER_LIST and isinstance(value, list):
        return [_filter(element, (*path, str(n)), free) for n, element in enumerate(value)]
    inner = _section_of(field.annotation)
    if isinstance(value, Mapping):
        if inner is None:
            return free.redacted(value, *path)
        if get_origin(field.annotation) is dict:
            return {key: _entry(inner, item, (*path, key), free) for key, item in value.items()}
        return _section(inner, value, path, free)
    if isinstance(value, list) and any(isinstance(element, Mapping) for element in value):
        return [_entry(inner, element, (*path, str(n)), free) for n, element in enumerate(value)]
    return free.harmless(value, *path)


def _entry(model: type[BaseModel] | None, value: Any, path: tuple[str, ...], free: FreeForm) -> Any:
    """Returns an entry of a list or a mapping whose values are `model` sections, if not None."""
    if model is None:
        return free.redacted(value, *path)
    is_section = isinstance(value, Mapping)
    return _section(model, value, path, free) if is_section else free.harmless(value, *path)


def _filter(value: Any, path: tuple[str, ...], free: FreeForm) -> Any:
    """Returns a filter of recorded conversations, whose `type` defines its parameters."""
    params = FILTERS.get(str(value.get("type"))) if isinstance(value, Mapping) else None
    if params is None:
        return free.redacted(value, *path)
    redacted = _section(params, value.get("params") or {}, (*path, "params"), free)
    return {**value, "params": redacted} if "params" in value else dict(value)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Returns the section that a field holds, alone, in a list or in a mapping; None for any other
    field."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def environment_references(written: Any) -> dict[str, str]:
    """Returns the references in unresolved data, by the dotted paths of their values:
    ``Bearer ${oc.env:TOKEN,none}`` -> ``Bearer ${oc.env:TOKEN}``, if TOKEN is set. The default is
    left out, since it may be a secret too. A key that refers to such a key has its reference. Texts
    with anything around the reference but an authorization scheme are not found."""
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
