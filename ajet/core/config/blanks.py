"""Refuses values that are left blank (``???``), which OmegaConf would replace by the default."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.core.config.nested import flatten
from ajet.core.config.overrides import override_key
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

BLANK = "???"


def refuse_blanks(values: Mapping[str, Any], overrides: Sequence[str], path: Path) -> None:
    """Raises `ConfigError` for the first blank value of a YAML that no override sets."""
    set_keys = {override_key(override).lstrip("+~") for override in overrides}
    blanks = [
        key for key, value in flatten(values).items() if value == BLANK and key not in set_keys
    ]
    if not blanks:
        return
    more = f" (and {len(blanks) - 1} more)" if len(blanks) > 1 else ""
    raise ConfigError(
        f"{path}: {blanks[0]} is left blank (???){more}: write its value", code=Code.KEY_MISSING
    )
