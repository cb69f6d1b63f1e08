"""From a YAML and command-line overrides to plain data, composed by Hydra from any folder.

    math_agent.yaml ──┐
    its `defaults:`  ─┼─ Hydra ── plain dict
    key=value …      ─┘

The `hydra:`/`defaults:` boilerplate may be there or not: the project's defaults are always found
in the package, and folders of `hydra.searchpath` that exist are searched too. The order is that of
`defaults:`, or the project's defaults first where there is none. Overrides are Hydra's:
`key=value`, `+key=value`, `~key`; what its grammar cannot read, as the arrow of
`workflow.py->Agent`, is taken as text.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ajet import default_config
from ajet.core.errors import ConfigError

DEFAULTS = ["verl_default", "trinity_default", "ajet_default", "_self_"]
PACKAGED = [Path(default_config.__file__).parent / folder for folder in ("", "verl", "trinity")]
TYPED_ROOTS = ("ajet", "verl", "trinity")


def compose(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """The composed YAML as plain data, interpolations resolved."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    written = read_yaml(path)
    boilerplate = written.pop("hydra", None)
    written.setdefault("defaults", DEFAULTS)
    name = "__ajet_run__"
    ConfigStore.instance().store(name=name, node=OmegaConf.create(written))
    search = ",".join([*map(_file_url, PACKAGED), *_own_search_path(boilerplate, path)])
    try:
        parsed = [f"hydra.searchpath=[{search}]", *map(_hydra_override, overrides)]
        with initialize_config_dir(str(path.parent.resolve()), version_base="1.3"):
            composed = hydra_compose(name, parsed)
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"{path}: {_first_lines(error)}") from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def read_yaml(path: Path) -> dict[str, Any]:
    """The YAML's own mapping; one line when there is no such file or it is no mapping."""
    from omegaconf import OmegaConf

    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: a config ends in .yaml")
    if not path.is_file():
        raise ConfigError(f"{path}: no such config file (the current folder is {Path.cwd()})")
    try:
        written = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(_yaml_error(path, error)) from error
    if not isinstance(written, dict):
        raise ConfigError(f"{path}: a config is a mapping with a section 'ajet:'")
    return {str(key): value for key, value in written.items()}


def override_key(override: str) -> str:
    """``+ajet.seed=1`` -> ``ajet.seed``."""
    return override.split("=", 1)[0].lstrip("+~").split("@", 1)[0]


def _hydra_override(override: str) -> str:
    """The override as Hydra takes it: typed roots are checked by the tree, not by Hydra."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, value = override.partition("=")
    if not equals and not override.startswith("~"):
        raise ConfigError(f"override {override!r}: write key=value, for example ajet.seed=1")
    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        override = f"{key}={_quoted(value)}"
        parsed = OverridesParser.create().parse_override(override)
    if parsed.is_sweep_override():
        raise ConfigError(f"override {override!r}: one value only; write a list as [a,b]")
    # Hydra refuses a key that no YAML names, without knowing the tree: force it, the tree judges.
    is_typed = override_key(override).split(".")[0] in TYPED_ROOTS
    plain_change = not override.startswith(("+", "~"))
    return f"++{override}" if is_typed and plain_change else override


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _own_search_path(boilerplate: Any, path: Path) -> list[str]:
    """The user's own `hydra.searchpath` folders that exist, as absolute ones."""
    listed = boilerplate.get("searchpath", []) if isinstance(boilerplate, dict) else []
    found = []
    for entry in listed or []:
        scheme, _, place = str(entry).partition("://")
        if scheme == "pkg":
            found.append(str(entry))
        elif scheme == "file":
            folders = (base / place for base in (Path.cwd(), path.parent))
            found += [_file_url(folder) for folder in folders if folder.is_dir()]
    return list(dict.fromkeys(found))


def _file_url(folder: Path) -> str:
    return _quoted(f"file://{folder.resolve()}")


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line for line in lines[:3] if not line.startswith("object_type"))


def _yaml_error(path: Path, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or _first_lines(error)
    place = f"{path}:{mark.line + 1}" if mark else f"{path}"
    return f"{place}: not valid YAML: {problem}"
