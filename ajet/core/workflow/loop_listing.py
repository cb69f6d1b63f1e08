"""Reads the YAML of `agent_loop_config_path`, which names agent loops in verl's form.

    - name: math_expression                          rows name it as their agent_name
      _target_: package.module.MathAgentLoop         or file.py->Class
      max_retries: 3                                 an argument of its constructor

Not covered: Hydra's other `_…_` keys; agents that `@register` names (`ajet.rollout.agent_modules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.importing import as_import_spec, load_object

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

KEY = "ajet.rollout.agent.agent_loop_config_path"
IGNORED = ("_recursive_", "_convert_")
"""Keys of Hydra's that say how settings are converted; they are plain values here."""


@dataclass(frozen=True, slots=True)
class ListedLoop:
    """One entry of the file."""

    name: str
    loop_class: type
    settings: Mapping[str, Any]
    location: str


def listed_loops(config: AjetConfig) -> Iterator[ListedLoop]:
    """Yields the loops of the config's file, imported; nothing without a file."""
    path = config.ajet.rollout.agent.agent_loop_config_path
    if path is None:
        return
    candidates = [(folder / Path(path).expanduser()).resolve() for folder in config.base_dirs]
    file = next((path for path in candidates if path.is_file()), None)
    if file is None:
        tried = ", ".join(map(str, dict.fromkeys(candidates)))
        raise ConfigError(
            f"{KEY}: {path}: no such file; looked for {tried}", code=Code.TOOL_LISTING
        )
    for order, entry in enumerate(_entries(file)):
        yield _listed(entry, f"{file.name}: [{order}]", (file.parent, *config.base_dirs))


def _listed(entry: Any, location: str, base_dirs: tuple[Path, ...]) -> ListedLoop:
    fields = dict(entry) if isinstance(entry, Mapping) else {}
    name, target = fields.pop("name", None), fields.pop("_target_", None)
    if not (isinstance(name, str) and name and isinstance(target, str)):
        raise ConfigError(
            f"{location}: write an agent loop as name: … and _target_: module.Class",
            code=Code.TOOL_LISTING,
        )
    settings = {key: value for key, value in fields.items() if key not in IGNORED}
    if unknown := [key for key in settings if str(key).startswith("_")]:
        raise ConfigError(
            f"{location}: no key {unknown[0]!r} here: leave it out", code=Code.TOOL_LISTING
        )
    location = f"{location}._target_"
    loop_class = load_object(
        as_import_spec(target), base_dirs=base_dirs, kind=object, where=location
    )
    return ListedLoop(name, loop_class, settings, f"{location}: {target!r}")


def _entries(file: Path) -> list[Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        entries = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: no valid YAML: {' '.join(str(error).split())}", code=Code.TOOL_LISTING
        ) from error
    if not isinstance(entries, list):
        raise ConfigError(
            f"{file}: a list of agent loops is expected: - name: …", code=Code.TOOL_LISTING
        )
    return entries
