"""Reads the config of an earlier run from its run folder's config.yaml, as the run had it.

What the file holds is resolved already, so nothing is composed or renamed. Secrets appear in it
as ``***``. Not covered: a file of a version whose keys differ (one line says which).
"""

from pathlib import Path

import yaml
from pydantic import ValidationError

from ajet.core.config.compose import check_size
from ajet.core.config.explain import Origin, explain
from ajet.core.config.tree import AjetConfig
from ajet.core.errors import ConfigError


def saved_config(file: Path, *, yaml_path: Path, project_dir: Path | None) -> AjetConfig:
    """Returns the config in `file`. The user's files are looked for where the config at `yaml_path`
    looked."""
    try:
        text = file.read_text(encoding="utf-8")
        node = yaml.compose(text)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{file} is damaged: it holds no config")
        check_size(node, file)
        config = AjetConfig.model_validate(yaml.safe_load(text))
    except (OSError, ValueError, TypeError, yaml.YAMLError, RecursionError) as error:
        if isinstance(error, ValidationError):
            raise ConfigError(explain(error, AjetConfig, Origin(file, []))) from error
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    config._yaml_path = yaml_path
    config._project_dir = project_dir
    return config
