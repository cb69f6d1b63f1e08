"""Lays a YAML and overrides over the project's defaults, where that is all there is to compose.

    verl_default, trinity_default, ajet_default     read once a process
    the YAML                                        laid over them, section by section
    key=value …                                     each laid over what is there by then

The result is Hydra's, in a fraction of its time, and Hydra is not imported where there are no
overrides. Not covered: other entries of `defaults:`, references (``${…}``), config groups, deleted
keys, and mistakes. `overlaid` returns None for those, and Hydra composes them or says what is
wrong.
"""

import pickle
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ajet import default_config
from ajet.core.config.explain import Origin, mapping_and_list_problem
from ajet.core.config.nested import merge, texts
from ajet.core.config.overrides import parsed_override

PACKAGED = [Path(default_config.__file__).parent / folder for folder in ("", "verl", "trinity")]
FILES = {file.stem: file for folder in PACKAGED for file in folder.glob("*.yaml")}
"""The files of the project's defaults by their names in `defaults:`."""


def overlaid(
    yaml_content: Mapping[str, Any],
    defaults: Sequence[Any],
    overrides: Sequence[str],
    origin: Origin,
) -> dict[str, Any] | None:
    """Returns the YAML's content without its `defaults:` over the files that these name, and the
    overrides over it; None where Hydra must compose it."""
    *names, last = defaults
    folder = origin.path.parent
    if last != "_self_" or not _are_packaged(names, folder):
        return None
    if any("${" in text or text == "???" for text in texts([yaml_content, *overrides])):
        return None
    values = pickle.loads(_content_of(tuple(names)))  # noqa: S301 - made below
    if mapping_and_list_problem(yaml_content, values, origin):
        return None
    values = merge(values, yaml_content)
    for override in overrides:
        layer = _layer(override, values, [folder, *PACKAGED])
        if layer is None or mapping_and_list_problem(layer, values, origin):
            return None
        values = merge(values, layer)
    return values


def _are_packaged(names: Sequence[Any], folder: Path) -> bool:
    """Tells whether all entries are the project's defaults, once each, and not files of the same
    name beside the YAML, which come first."""
    if not all(isinstance(name, str) and name in FILES for name in names):
        return False
    is_beside = any((folder / f"{name}.yaml").exists() for name in names)
    return len(set(names)) == len(names) and not is_beside


@cache
def _content_of(names: tuple[str, ...]) -> bytes:
    """Returns the content of these files, each laid over those before it, pickled: each composition
    has a copy of its own."""
    from omegaconf import OmegaConf

    values: dict[str, Any] = {}
    for name in names:
        content: Any = OmegaConf.to_container(OmegaConf.load(FILES[name]), resolve=False)
        values = merge(values, content)
    return pickle.dumps(values)


def _layer(
    override: str, values: Mapping[str, Any], folders: Sequence[Path]
) -> dict[str, Any] | None:
    """Returns an override as a YAML would have it; None for one of a config group, which is a
    folder, one that deletes, one with a ``+`` of a key that has a value, and one without that may
    add a key."""
    parsed = parsed_override(override)
    key, value = parsed.key_or_group, parsed.value()
    is_group = "/" in key or any((folder / key).is_dir() for folder in folders)
    if is_group or parsed.package is not None or parsed.is_delete():
        return None
    *sections, name = key.split(".")
    section: Any = values
    for key_part in sections:
        section = section.get(key_part) if isinstance(section, Mapping) else None
    is_there = isinstance(section, Mapping) and name in section
    if parsed.is_add():
        has_value = is_there and section[name] is not None
        is_mistake = has_value and not isinstance(value, Mapping | list)
    else:
        adds = not is_there or isinstance(value, Mapping)
        is_mistake = adds and not parsed.is_force_add()
    if is_mistake:
        return None
    layer: Any = value
    for key_part in [name, *reversed(sections)]:
        layer = {key_part: layer}
    return layer
