"""Finds the user's code that a config names: the files of its classes, and what these import.

Files are parsed, not imported, so an import inside a function counts too. ajet and installed
packages (with a `.dist-info` in their folder) are left out: they are identified by their versions.
"""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import yaml

from ajet.core.config import AjetConfig
from ajet.core.config.nested import texts
from ajet.core.user_code.importing import ARROW

STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
AJET = Path(__file__).parents[2]


def code_files(config: AjetConfig) -> list[Path]:
    """Returns the files of the user's classes and of all that they import, sorted."""
    # Folders on the import path that are not installed, such as PYTHONPATH's.
    on_path = [Path(entry).resolve() for entry in sys.path if entry]
    on_path = [folder for folder in on_path if folder.is_dir() and not _is_installed(folder)]
    roots = [*config.base_dirs, *on_path]
    files: set[Path] = set()
    waiting = [file for name in _named_sources(config) for file in _module_files(name, roots)]
    # Follows imports depth first; a script's folder comes first on its import path.
    while waiting:
        file = waiting.pop()
        if file in files or _is_installed(file):
            continue
        files.add(file)
        waiting += _imported_files(file, [file.parent, *roots])
    return sorted(files)


def below_base_dirs(file: Path, base_dirs: Sequence[Path]) -> Path | None:
    """Returns the file's path relative to the first of the folders that it is in, if any."""
    folders = (folder for folder in base_dirs if file.is_relative_to(folder))
    return next((file.relative_to(folder) for folder in folders), None)


def _named_sources(config: AjetConfig) -> Iterator[str]:
    """Yields file.py or package.module of each class and module that the config names, as
    agent/solver.py for `user_workflow: agent/solver.py->Solver`."""
    for value in texts(config.to_dict()):
        source, arrow, name = value.partition(ARROW)
        if arrow and name.strip():
            yield source.strip()
    rollout = config.ajet.rollout
    yield from rollout.agent_modules
    for listing in (
        rollout.multi_turn.tool_config_path,
        rollout.multi_turn.interaction_config_path,
        rollout.agent.agent_loop_config_path,
    ):
        for name in _listed_classes(listing, config.base_dirs):
            yield name.partition(ARROW)[0] if ARROW in name else name.rpartition(".")[0]


def _listed_classes(listing: str | None, base_dirs: Sequence[Path]) -> Iterator[str]:
    """Yields the classes that a file lists: tools as class_name, agent loops as _target_. A file
    that cannot be read lists none."""
    files = [folder / Path(listing).expanduser() for folder in base_dirs] if listing else []
    for file in [file for file in files if file.is_file()][:1]:
        try:
            content = yaml.safe_load(file.read_bytes())
        except (OSError, yaml.YAMLError):
            return
        for key in ("class_name", "_target_"):
            yield from _values_of(key, content)


def _values_of(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get(key), str):
            yield value[key]
        for inner in value.values():
            yield from _values_of(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _values_of(key, inner)


def _module_files(source: str, roots: Sequence[Path]) -> list[Path]:
    """Returns the file of a module, after the `__init__.py` of its packages; nothing for one that
    is not the user's."""
    if source.endswith(".py"):
        paths = [root / Path(source).expanduser() for root in roots]
        return [path.resolve() for path in paths if path.is_file()][:1]
    for root in roots:
        files = _files_below(root, source.split("."))
        if files:
            return files
    top, *rest = source.split(".")
    spec = PathFinder.find_spec(top) if top.isidentifier() else None  # an editable install
    if spec is None or spec.origin is None or not spec.has_location:
        return []
    folder = Path(spec.origin).resolve().parent
    return [] if _is_installed(folder) else _files_below(folder.parent, [folder.name, *rest])


def _files_below(root: Path, names: Sequence[str]) -> list[Path]:
    """Returns the files that importing the dotted names below `root` runs. The last names may be
    those of objects in a module."""
    files: list[Path] = []
    folder = root
    for name in names:
        if (folder / f"{name}.py").is_file():
            return [*files, (folder / f"{name}.py").resolve()]
        folder = folder / name
        if not folder.is_dir():
            break
        if (folder / "__init__.py").is_file():
            files.append((folder / "__init__.py").resolve())
    return files


def _imported_files(file: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Yields the user's files that this file imports; one that cannot be parsed imports none."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            base = node.module.split(".") if node.module else []
            for alias in node.names:  # a name may be a module of the package
                if node.level:  # relative: one dot is the file's folder
                    yield from _files_below(file.parents[node.level - 1], [*base, alias.name])
                else:
                    yield from _module_files(".".join([*base, alias.name]), roots)


def _is_installed(path: Path) -> bool:
    folders = (AJET, *STANDARD, *_installed_folders(tuple(sys.path)))
    return any(path.is_relative_to(folder) for folder in folders)


@functools.cache
def _installed_folders(import_path: tuple[str, ...]) -> tuple[Path, ...]:
    """Returns the folders of the import path into which packages are installed (a user's, a
    system's, one of `pip install --target`). An editable install has no `.dist-info` there."""
    folders = [Path(entry).resolve() for entry in import_path if entry]
    return tuple(folder for folder in folders if any(folder.glob("*.dist-info")))
