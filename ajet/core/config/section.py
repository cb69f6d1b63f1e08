"""Defines the base class of config sections, and what can be said of a key beside its type.

    class Rollout(Section):
        api_key: Annotated[str, Secret()] = Field(default="", description="…")
        name: Annotated[str, NoEffect("…", on=("debug",))] = Field(default="auto", description="…")
        burst: Annotated[int, Since("0.2.0")] = Field(default=1, description="…")

`NoEffect` lets the run start and says so in one notice; without it a key is honoured. Keys that no
backbone reads are not in the tree (agentjet_keys.py). The value of a
`Secret` is shown and stored nowhere. A key without `Since` is there since 0.1.0, the first version.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

ALL_BACKBONES = ("debug", "verl", "trinity")


@dataclass(frozen=True)
class NoEffect:
    """Marks a key that is accepted on these backbones without effect; a notice says so unless it
    has its default."""

    reason: str
    on: tuple[str, ...]


@dataclass(frozen=True)
class Since:
    """Marks a key that a later version than the first brought; the reference of the config says
    which."""

    version: str


@dataclass(frozen=True)
class Secret:
    """Marks a key whose value is a secret."""


class Section(BaseModel):
    """Base class of the tree's parts. It is strict and frozen: unknown keys, wrong types, inf and
    nan are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def of_user(cls, sections: Mapping[str, Any], name: str) -> Self:
        """Returns the section `name` beside `ajet:`, with defaults where there is none. Raises
        ConfigError for a key or a value that this class does not take."""
        try:
            return cls.model_validate(dict(sections.get(name) or {}))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join([name, *map(str, first["loc"])])
            raise ConfigError(
                f"{key}: {first['msg']}; {name} has {', '.join(cls.model_fields)}",
                code=Code.UNKNOWN_KEY,
            ) from error


@dataclass(frozen=True)
class Leaf:
    """Holds one key of the tree with its value."""

    path: str
    field: FieldInfo
    value: Any

    @property
    def is_default(self) -> bool:
        return self.value == self.field.get_default(call_default_factory=True)


def same_named(cls: Any, *sections: Section) -> dict[str, Any]:
    """Returns by name the keys of these sections that the dataclass `kind` has fields of the same
    name for. A later section counts where two have the key."""
    names = {field.name for field in fields(cls)}
    return {
        name: getattr(section, name)
        for section in sections
        for name in type(section).model_fields
        if name in names
    }


def leaves(section: BaseModel, path: str) -> Iterator[Leaf]:
    """Yields every key below `section`, depth first in the order of declaration."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves(value, f"{path}.{name}")
        else:
            yield Leaf(f"{path}.{name}", field, value)
