"""Finds the user's code that a config names: the files of its classes, and what these import.

    user_workflow: agent/solver.py->Solver     agent/solver.py
    judge_protocol: judges.math->Judge         judges/math.py, judges/__init__.py
    agent/solver.py: `from prompts import …`   agent/prompts.py

Files are read and not imported, so an import inside a function counts too. Installed packages,
those in a folder of the import path that also has their `.dist-info`, and ajet itself, are versions
and no files. Not covered: code that is found at run
time only (importlib with a computed name), and files that the code reads.
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
from ajet.core.importing import ARROW

STANDARD = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
AJET = Path(__file__).parents[2]


def code_files(config: AjetConfig) -> list[Path]:
    """Returns the files of the user's classes and all that they import, sorted."""
    roots = [*config.base_dirs, *_import_roots()]
    files: set[Path] = set()
    waiting = [file for name in _named_sources(config) for file in _module_files(name, roots)]
    while waiting:
        file = waiting.pop()
        if file in files or _is_installed(file):
            continue
        files.add(file)
        waiting += _imported_files(file, [file.parent, *roots])
    return sorted(files)


def below_base_dirs(file: Path, config: AjetConfig) -> Path | None:
    """Returns the file's path from the first of the config's folders that it is in; None outside
    of all."""
    folders = (folder for folder in config.base_dirs if file.is_relative_to(folder))
    return next((file.relative_to(folder) for folder in folders), None)


def _named_sources(config: AjetConfig) -> Iterator[str]:
    """Yields file.py or package.module of each class and module that the config names."""
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
    """Yields each class that a file lists: tools by class_name, agent loops by _target_; nothing
    of a file that cannot be read."""
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


def _import_roots() -> list[Path]:
    """Returns the folders of the user's own on the import path (an editable install, say)."""
    folders = [Path(entry).resolve() for entry in sys.path if entry]
    return [folder for folder in folders if folder.is_dir() and not _is_installed(folder)]


def _module_files(source: str, roots: Sequence[Path]) -> list[Path]:
    """Returns the file of a module, after those of the packages around it; nothing where the module
    is not found below `roots`."""
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
    """Returns the files that importing the dotted names runs, if the first of them is below
    `root`. The last names may be those of objects in a module."""
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
    """Yields the user's files that this file imports anywhere in it; a file that cannot be read
    imports nothing."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _module_files(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            yield from _imported_from(node, file, roots)


def _imported_from(node: ast.ImportFrom, file: Path, roots: Sequence[Path]) -> Iterator[Path]:
    base = node.module.split(".") if node.module else []
    for alias in node.names:
        if node.level:
            yield from _files_below(file.parents[node.level - 1], [*base, alias.name])
        else:
            yield from _module_files(".".join([*base, alias.name]), roots)


def _is_installed(path: Path) -> bool:
    folders = (AJET, *STANDARD, *_installed_folders(tuple(sys.path)))
    return any(path.is_relative_to(folder) for folder in folders)


@functools.cache
def _installed_folders(import_path: tuple[str, ...]) -> tuple[Path, ...]:
    """Returns the folders that packages are installed in: a user's own, a system's below a virtual
    environment, one of `pip install --target`. An editable install has an `.egg-info` there."""
    folders = [Path(entry).resolve() for entry in import_path if entry]
    return tuple(folder for folder in folders if any(folder.glob("*.dist-info")))
