"""Reads `device_mapping`: which GPUs of the cluster a role has, numbered from 0 over all nodes.

    [0, 1]                             two GPUs
    list(range(0,8))                   as ROLL's YAMLs have it; also range(0,8,2)
    list(range(0,4)) + [6]             sums of them

A text is parsed by this grammar, never evaluated.
"""

import re
from collections import Counter
from typing import Annotated, Any

from pydantic import BeforeValidator

_RANGE = re.compile(r"(?:list\()?range\((?:(\d+),)?(\d+)(?:,(\d+))?\)\)?")
_LIST = re.compile(r"\[(\d+(?:,\d+)*,?)?\]")
MAX_GPUS = 100_000
ACCEPTED_FORMS = "write a list as [0, 1] or a text as list(range(0,8))"


def device_list(mapping: Any) -> list[int]:
    """Returns the GPUs of a `device_mapping`. Raises ValueError for any other value, and for a GPU
    that is there twice."""
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
