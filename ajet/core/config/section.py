"""Defines the base class of config sections, and marks that a key can have besides its type.

    class Rollout(Section):
        api_key: Annotated[str, Secret()] = Field(default="", description="…")
        name: Annotated[str, NoEffect("…", on=("debug",))] = Field(default="auto", description="…")
        burst: Annotated[int, Since("0.2.0")] = Field(default=1, description="…")

A key with `NoEffect` is accepted with a notice, one without it is honoured. A key without `Since`
exists since 0.1.0. Keys that no backbone reads are not in the tree (agentjet_keys.py).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.net.address import checked_address, checked_path_or_address

ALL_BACKBONES = ("debug", "verl", "trinity")
PathOrAddress = Annotated[str, AfterValidator(checked_path_or_address)]
Address = Annotated[str, AfterValidator(checked_address)]
"""An address such as http://127.0.0.1:8000/v1."""


def _checked_import_path(value: str) -> str:
    source, arrow, name = value.partition("->")
    if not (source.strip() and arrow and name.strip().isidentifier()):
        raise ValueError(f"file.py->name or package.module->name is expected, got {value[:60]!r}")
    return value


ImportPath = Annotated[str, AfterValidator(_checked_import_path)]
"""A function or class of the user's: file.py->name, found from the YAML's folder and then from the
current one, or package.module->name. It is imported on use (core/user_code/importing.py)."""

_RANGE = re.compile(r"(?:list\()?range\((?:(\d+),)?(\d+)(?:,(\d+))?\)\)?")
_LIST = re.compile(r"\[(\d+(?:,\d+)*,?)?\]")
MAX_GPUS = 100_000
ACCEPTED_FORMS = "write a list as [0, 1] or a text as list(range(0,8))"


def device_list(mapping: Any) -> list[int]:
    """Returns the GPUs of a `device_mapping`, numbered from 0 over all nodes: a list, or as in
    ROLL's YAMLs a text such as list(range(0,4)) + [6], which is parsed and never evaluated. Raises
    ValueError for any other value, and for a GPU that is there twice."""
    devices = list(mapping) if isinstance(mapping, list) else _read(str(mapping))
    if not all(type(device) is int and device >= 0 for device in devices):
        raise ValueError(f"GPUs are numbers from 0, got {mapping!r}; {ACCEPTED_FORMS}")
    if not devices:
        raise ValueError(f"{mapping!r} names no GPU; {ACCEPTED_FORMS}, or leave it null")
    repeated = [device for device, times in Counter(devices).items() if times > 1]
    if repeated:
        raise ValueError(f"{mapping!r} names GPU {repeated[0]} twice")
    return devices


def _read(text: str) -> list[int]:
    devices: list[int] = []
    for part in re.sub(r"\s", "", text).split("+"):
        if match := _RANGE.fullmatch(part):
            start, stop, step = int(match[1] or 0), int(match[2]), int(match[3] or 1)
            if part.startswith("list(") != part.endswith("))") or not step or stop > MAX_GPUS:
                raise ValueError(f"{text!r} cannot be read; {ACCEPTED_FORMS}")
            devices += range(start, stop, step)
        elif match := _LIST.fullmatch(part):
            devices += [int(number) for number in (match[1] or "").split(",") if number]
        else:
            raise ValueError(f"{text!r} cannot be read; {ACCEPTED_FORMS}")
    return devices


DeviceMapping = Annotated[
    list[int] | None,
    BeforeValidator(
        lambda mapping: None if mapping is None else device_list(mapping),
        json_schema_input_type=list[int] | str | None,
    ),
]


@dataclass(frozen=True)
class NoEffect:
    """Marks a key that has no effect on these backbones; a notice says so unless it has its
    default."""

    reason: str
    on: tuple[str, ...]


@dataclass(frozen=True)
class Since:
    """Marks a key that a later version brought; the reference of the config shows it."""

    version: str


@dataclass(frozen=True)
class Secret:
    """Marks a key whose value is neither shown nor stored."""


class Section(BaseModel):
    """Base class of the tree's sections. It is strict and frozen: unknown keys, wrong types, inf
    and nan are errors."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )

    @classmethod
    def from_sections(cls, sections: Mapping[str, Any], name: str) -> Self:
        """Returns the top-level section `name`, with defaults where there is none. Raises
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
    path: str
    field: FieldInfo
    value: Any

    @property
    def is_default(self) -> bool:
        return self.value == self.field.get_default(call_default_factory=True)


def same_named(cls: Any, *sections: Section) -> dict[str, Any]:
    """Returns the keys of these sections for which the dataclass `cls` has a field of the same
    name. The last section counts where several have the key."""
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
