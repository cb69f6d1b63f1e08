"""Translates ROLL's and verl's keys of asynchronous training to those of `trinity:`.

    async_generation_ratio: 1                                  trinity.max_staleness: 1
    async_training: {trigger_parameter_sync_step: 4,           synchronizer.sync_interval: 4
                     staleness_threshold: 0.1,                 max_staleness: 4 (ceil(1.1 x 4) - 1)
                     partial_rollout: false}                   partial_rollout: finish

They are accepted at the top level, as in those systems, or under `ajet:`.
"""

import math
from collections.abc import Mapping
from typing import Any

from ajet.core.config.nested import get_key, set_key
from ajet.core.errors import ConfigError, KeysConflict
from ajet.core.errors.codes import Code

RATIO, SECTION = "async_generation_ratio", "async_training"
KNOWN = ("trigger_parameter_sync_step", "staleness_threshold", "partial_rollout")
WITHOUT_EFFECT = {"require_batches": 1, "use_rollout_log_probs": True}
"""These values describe what is always so here; they are accepted and ignored."""


def staleness_of_ratio(ratio: float) -> int:
    """Returns the staleness for ROLL's ratio. ROLL generates `ratio` batches ahead; a part of one
    makes tokens one update old."""
    return math.ceil(ratio)


def staleness_of_threshold(threshold: float, interval: int) -> int:
    """Returns the staleness for verl's threshold. verl generates at most 1 + threshold times what
    is trained between two transfers of weights, which are `interval` updates apart."""
    # 1e-9: (1 + 0.1) * 10 is 11.000000000000002, whose ceiling would be 12.
    return max(0, math.ceil((1 + threshold) * interval - 1e-9) - 1)


def take_async_keys(values: dict[str, Any]) -> None:
    """Moves the keys to `trinity:`, in place."""
    ajet = values.get("ajet")
    mappings = [values, ajet] if isinstance(ajet, dict) else [values]
    for mapping in mappings:
        if (ratio := mapping.pop(RATIO, None)) is not None:
            _set(values, "max_staleness", staleness_of_ratio(_number(RATIO, ratio)), RATIO)
        if (section := mapping.pop(SECTION, None)) is not None:
            _take_section(values, section)


def _take_section(values: dict[str, Any], section: Any) -> None:
    if not isinstance(section, Mapping):
        raise ConfigError(
            f"{SECTION}: a section is expected, got {section!r}", code=Code.WRONG_VALUE
        )
    for key, value in section.items():
        if key not in KNOWN and WITHOUT_EFFECT.get(key, math.nan) != value:
            raise ConfigError(
                f"{SECTION}.{key}={value} is refused: it has no counterpart; leave it out "
                f"(taken are {', '.join(KNOWN)})",
                code=Code.KEY_REFUSED,
            )
    interval = int(_number(SECTION, section.get(KNOWN[0], 1)))
    threshold = _number(SECTION, section.get(KNOWN[1], 0))
    staleness = staleness_of_threshold(threshold, interval)
    _set(values, "max_staleness", staleness, SECTION)
    _set(values, "synchronizer.sync_interval", interval, SECTION)
    if (partial := section.get(KNOWN[2])) is not None:
        _set(values, "partial_rollout", "continue" if partial else "finish", SECTION)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(
            f"{key}: a number from 0 is expected, got {value!r}", code=Code.WRONG_VALUE
        )
    return value


def _set(values: dict[str, Any], key: str, value: Any, source: str) -> None:
    defaults = {"synchronizer.sync_interval": 1, "partial_rollout": "continue"}
    present = get_key(values, f"trinity.{key}")
    if present not in (None, value, defaults.get(key)):
        raise KeysConflict(
            f"{source} and trinity.{key} are one key with two values: {value}, {present}"
        )
    set_key(values, f"trinity.{key}", value)
