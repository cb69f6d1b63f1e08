"""Reads the config of an earlier run from its run folder's config.yaml, as the run had it.

The file's values are resolved, so nothing is composed or renamed. A secret that came from the
environment is read from there again; others are ``***``, and `overrides` may set them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ajet.core.config.compose import check_size
from ajet.core.config.explain import Origin, explained
from ajet.core.config.overrides import override_value
from ajet.core.config.redacted import remember_secrets_of, resolved, stored_references
from ajet.core.config.renames import take_absent, take_judge_models
from ajet.core.config.tree import AjetConfig
from ajet.core.config.yaml_codec import constructed, root_of
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code


def saved_config(
    file: Path, *, yaml_path: Path, project_dir: Path | None, overrides: Sequence[str] = ()
) -> AjetConfig:
    """Returns the config in `file`. `yaml_path` and `project_dir` are those of the run, from which
    the user's files are found."""
    try:
        if file.exists() and not file.is_file():  # a pipe, or a link to /dev/zero, never ends
            raise ConfigError(f"{file} is not a regular file", code=Code.RECORD_UNREADABLE)
        text = file.read_text(encoding="utf-8")
        node = root_of(text)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{file} is damaged: it holds no config", code=Code.RECORD_UNREADABLE)
        check_size(node, file)
        written = constructed(node)
        take_absent(written)  # keys of earlier versions that had no effect
        take_judge_models(written)
        values = resolved(written)
        for override in overrides:
            _set(values, *override_value(override))
        config = AjetConfig.model_validate(values)
    except (OSError, ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        if isinstance(error, ValidationError):
            raise explained(error, AjetConfig, Origin(file, overrides)) from error
        raise ConfigError(
            f"{file} cannot be read: {' '.join(str(error).split())}", code=Code.RECORD_UNREADABLE
        ) from error
    config._references = stored_references(written)
    remember_secrets_of(config)
    config._yaml_path = yaml_path
    config._project_dir = project_dir
    return config


def _set(values: Any, key: str, value: Any) -> None:
    """Sets a dotted key, and makes the sections on the way to it."""
    *sections, name = key.split(".")
    for section in sections:
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[name] = value
