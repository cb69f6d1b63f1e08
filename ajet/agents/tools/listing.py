"""Reads a YAML file that lists tools or simulated users.

    tools:                      ->   [Entry({"function": …}, "tools.yaml: tools[0]")]
      - function: a.py->add

Each mistake is reported in one line with the file, the entry and the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ajet.core.config.compose import read_yaml
from ajet.core.config.explain import message_of
from ajet.core.config.section import Section
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.redaction import FreeForm, remember_secrets

Form = TypeVar("Form", bound=Section)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list; `where` names it in error messages."""

    values: dict[str, Any]
    where: str

    def validated_as(self, form: type[Form]) -> Form:
        """Returns the entry as an instance of `form`; raises `ConfigError` if it is not valid."""
        try:
            return form.model_validate(self.values)
        except ValidationError as error:
            raise ConfigError(
                f"{self.where}: {_mistake(error, form)}", code=Code.TOOL_LISTING
            ) from error


def find_file(path: str, base_dirs: Sequence[Path], key: str) -> Path:
    """Returns the file that the config's `key` names, looked for in each of `base_dirs`."""
    tried = [folder / Path(path).expanduser() for folder in base_dirs]
    found = next((file for file in tried if file.is_file()), None)
    if found is None:
        raise ConfigError(
            f"{key}: {path}: no such file; looked for {', '.join(map(str, tried))}",
            code=Code.TOOL_LISTING,
        )
    return found.resolve()


def read_listing(file: Path, section: str) -> list[Entry]:
    """Returns the entries of `section`; raises `ConfigError` for any other top-level key."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        written = OmegaConf.to_container(OmegaConf.create(read_yaml(file)), resolve=True)
    except OmegaConfBaseException as error:  # an interpolation: ${oc.env:NAME}
        raise ConfigError(
            f"{file}: {str(error).splitlines()[0]}", code=Code.TOOL_LISTING
        ) from error
    assert isinstance(written, dict)
    free_form = FreeForm()
    free_form.allowed(written)
    remember_secrets(free_form.secrets)
    listed = written.pop(section, None)
    if written or not isinstance(listed, list):
        raise ConfigError(
            f"{file}: the file has one key, {section}, with a list", code=Code.TOOL_LISTING
        )
    for order, values in enumerate(listed):
        if not isinstance(values, Mapping):
            raise ConfigError(f"{file}: {section}[{order}] is no mapping", code=Code.TOOL_LISTING)
    return [
        Entry(dict(values), f"{file.name}: {section}[{order}]")
        for order, values in enumerate(listed)
    ]


def _mistake(error: ValidationError, form: type[Section]) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] != "extra_forbidden":
        return f"{key}: {message_of(first)}" if key else message_of(first)
    names = list(form.model_fields)
    close = get_close_matches(str(first["loc"][-1]), names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
    return f"{key}: no such key; {hint}"
