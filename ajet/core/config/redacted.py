"""Shows a config as the run folder, the trackers, notices and errors may: without secrets.

    ajet.model.path, trinity.staleness        defined by ajet: shown, without logins in addresses
    ….deduplication.params.api_key            defined as `Secret`: ***
    ajet.….env_config, frozen_lake.map_name   the user's own keys: `FreeForm` of core/redaction.py

A secret that the YAML takes from the environment appears as ``${oc.env:NAME}``. Not covered:
reading such a config back (saved.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ajet.core.config.environment_reference import is_reference
from ajet.core.config.section import Secret, Section
from ajet.core.config.tracing import FILTERS
from ajet.core.config.tree import AjetConfig
from ajet.core.redaction import REDACTED, FreeForm, is_kept, remember_secrets

KNOWN_SECTIONS = ("suite.*",)
"""Sections beside `ajet:` that a package of ajet's reads, and which have no secrets."""
FILTER_LIST = "ajet.task_reader.tracing.filters"


def redacted_config(config: AjetConfig) -> dict[str, Any]:
    """Returns the config as plain data without secrets."""
    return _redacted(config, _free_form(config))


def config_without_secrets(config: AjetConfig) -> dict[str, Any]:
    """Returns the config as plain data with only that replaced which is a secret by its key or its
    form. It is not for showing: a text under a key of the user's own may be secret all the same."""
    return _redacted(config, _FreeFormKept(config.ajet.not_secret, config.references))


class _FreeFormKept(FreeForm):
    """Keeps what only its unknown key makes suspicious."""

    def redacted(self, value: Any, *path: str) -> Any:
        return self.allowed(value, *path)


def remember_secrets_of(config: AjetConfig) -> None:
    """Lets this process remove the config's secrets from its log lines and errors."""
    free_form = _free_form(config)
    _redacted(config, free_form)
    remember_secrets(free_form.secrets)


def redacted_value(key: str, value: Any, not_secret: Sequence[str] = ()) -> Any:
    """Returns the value that somebody gave to this key, as a message may show it."""
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
    redacted = redacted_value(name, text, not_secret)
    return f"{key}{equals}{redacted if isinstance(value, str) else REDACTED}"


def redacted_keys(values: Any, key: str = "", *, except_for: Sequence[str] = ()) -> Iterator[str]:
    """Yields the keys whose values were not stored: ``***``, a login of ``***``, or a variable of
    the environment that is not set. A list is one key."""
    if isinstance(values, Mapping):
        for name, inner in values.items():
            path = f"{key}.{name}" if key else str(name)
            yield from redacted_keys(inner, path, except_for=except_for)
    elif not is_kept(key, except_for):
        elements = values if isinstance(values, list) else [values]
        if any(_is_redacted(element) for element in elements):
            yield key


def _is_redacted(value: Any) -> bool:
    if isinstance(value, Mapping | list):
        return any(True for _ in redacted_keys(value))
    return isinstance(value, str) and (
        value == REDACTED or f"://{REDACTED}@" in value or is_reference(value)
    )


def _free_form(config: AjetConfig) -> FreeForm:
    return FreeForm([*config.ajet.not_secret, *KNOWN_SECTIONS], config.references)


def _redacted(config: AjetConfig, free_form: FreeForm) -> dict[str, Any]:
    plain = config.to_dict()
    return {
        name: _section(AjetConfig.model_fields[name].annotation, value, (name,), free_form)
        if name in AjetConfig.model_fields
        else free_form.redacted(value, name)
        for name, value in plain.items()
    }


def _section(model: Any, values: Mapping[str, Any], path: tuple[str, ...], free: FreeForm) -> Any:
    return {
        name: _field(model.model_fields[name], value, (*path, name), free)
        if name in model.model_fields
        else free.redacted(value, *path, name)
        for name, value in values.items()
    }


def _field(field: FieldInfo, value: Any, path: tuple[str, ...], free: FreeForm) -> Any:
    """Returns the value of a key that ajet defines: by the key's own definition, or as a free-form
    one where the definition leaves its form open."""
    if any(mark is Secret or isinstance(mark, Secret) for mark in field.metadata):
        return free.secret(value, *path)
    if ".".join(path) == FILTER_LIST and isinstance(value, list):
        return [_filter(element, (*path, str(n)), free) for n, element in enumerate(value)]
    annotation = field.annotation
    inner = _section_of(annotation)
    if isinstance(value, Mapping):
        if inner is None:
            return free.redacted(value, *path)
        if get_origin(annotation) is dict:
            return {key: _either(inner, item, (*path, key), free) for key, item in value.items()}
        return _section(inner, value, path, free)
    if isinstance(value, list) and any(isinstance(element, Mapping) for element in value):
        return [_either(inner, element, (*path, str(n)), free) for n, element in enumerate(value)]
    return free.harmless(value, *path)


def _either(
    model: type[BaseModel] | None, value: Any, path: tuple[str, ...], free: FreeForm
) -> Any:
    if model is None:
        return free.redacted(value, *path)
    is_section = isinstance(value, Mapping)
    return _section(model, value, path, free) if is_section else free.harmless(value, *path)


def _filter(value: Any, path: tuple[str, ...], free: FreeForm) -> Any:
    """Returns a filter of recorded conversations; its parameters are those of its type."""
    params = FILTERS.get(str(value.get("type"))) if isinstance(value, Mapping) else None
    if params is None:
        return free.redacted(value, *path)
    redacted = _section(params, value.get("params") or {}, (*path, "params"), free)
    return {**value, "params": redacted} if "params" in value else dict(value)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Returns the section that a field holds, one or several by name or in a list; None for any
    other field."""
    kinds: Iterable[Any] = (annotation, *get_args(annotation))
    sections = (candidate for candidate in kinds if isinstance(candidate, type) and issubclass(candidate, Section))
    return next(sections, None)
