"""Reads a YAML file that lists tools or simulated users.

    tools:                      ->   [Entry({"function": …}, "tools.yaml: tools[0]")]
      - function: a.py->add

Each mistake is reported in one line with the file, the entry and the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ajet.core.config.compose import read_yaml
from ajet.core.config.explain import message_of
from ajet.core.config.section import Section
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import did_you_mean
from ajet.core.text.redaction import FreeForm, remember_secrets

Form = TypeVar("Form", bound=Section)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list; `location` names it in error messages."""

    values: dict[str, Any]
    location: str

    def validated_as(self, form: type[Form]) -> Form:
        """Returns the entry as an instance of `form`; raises `ConfigError` if it is not valid."""
        try:
            return form.model_validate(self.values)
        except ValidationError as error:
            raise _listing_error(f"{self.location}: {_mistake(error, form)}") from error


def _listing_error(problem: str) -> ConfigError:
    return ConfigError(problem, code=Code.TOOL_LISTING)


def find_file(path: str, base_dirs: Sequence[Path], key: str) -> Path:
    """Returns the file that the config's `key` names, looked for in each of `base_dirs`."""
    candidates = [folder / Path(path).expanduser() for folder in base_dirs]
    for file in candidates:
        if file.is_file():
            return file.resolve()
    raise _listing_error(
        f"{key}: {path}: no such file; looked for {', '.join(map(str, candidates))}"
    )


def read_listing(file: Path, section: str) -> list[Entry]:
    """Returns the entries of `section`; raises `ConfigError` for any other top-level key."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.create(read_yaml(file)), resolve=True)
    except OmegaConfBaseException as error:  # an interpolation: ${oc.env:NAME}
        raise _listing_error(f"{file}: {str(error).splitlines()[0]}") from error
    assert isinstance(content, dict)
    # Secrets in the file (an API key of an MCP server) must not appear in logs and records.
    free_form = FreeForm()
    free_form.allowed(content)
    remember_secrets(free_form.secrets)
    items = content.pop(section, None)
    if content or not isinstance(items, list):
        raise _listing_error(f"{file}: the file has one key, {section}, with a list")
    entries: list[Entry] = []
    for order, values in enumerate(items):
        if not isinstance(values, Mapping):
            raise _listing_error(f"{file}: {section}[{order}] is not a mapping")
        entries.append(Entry(dict(values), f"{file.name}: {section}[{order}]"))
    return entries


def _mistake(error: ValidationError, form: type[Section]) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        return f"{key}: {message_of(first)}" if key else message_of(first)
    hint = did_you_mean(str(first["loc"][-1]), form.model_fields)
    return f"{key}: no such key; {hint}"
