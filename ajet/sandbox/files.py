"""Copies and writes the files of a folder in which a program has worked or will work.

A program's files are not trusted: a link may point anywhere, so nothing here follows one.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any


def write_files(folder: Path, files: Mapping[str, str], label: str) -> None:
    """Writes texts by their relative paths, and removes what is in the way, also a link among the
    parents of a file. Raises ValueError, which begins with `label`, for a path that leads out of
    the folder."""
    for name, text in files.items():
        components = PurePosixPath(name).parts
        if not components or name.startswith("/") or ".." in components or "\0" in name:
            raise ValueError(f"{label}: {name!r} is not a path inside the folder")
        path = folder
        for part in components[:-1]:
            path = path / part
            if path.is_symlink() or not path.is_dir():
                _remove(path)
                path.mkdir()
        path = path / components[-1]
        _remove(path)
        path.write_text(text, "utf-8")


def file_texts(row: Mapping[str, Any], field: str) -> dict[str, str]:
    """Returns a row's mapping from paths to texts, by default empty. Paths without a text are
    dropped: tables give every row the paths of all rows."""
    files = row.get(field) or {}
    if not isinstance(files, Mapping):
        raise ValueError(f"{field} must map paths to texts, not be {type(files).__name__}")
    return {str(path): str(text) for path, text in files.items() if text is not None}


def copy_folder(source: Path, target: Path) -> None:
    """Copies files, folders and links, but no pipes, sockets or devices."""
    shutil.copytree(source, target, symlinks=True, ignore=_special_files, dirs_exist_ok=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder, even if a program has removed the permissions of a part of it."""
    shutil.rmtree(folder, onerror=_retry_with_rights)


def regular_files(folder: Path) -> Iterator[str]:
    """Yields the relative paths of the files in a folder, in order."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(parent, name)
            if stat.S_ISREG(path.lstat().st_mode):
                yield str(path.relative_to(folder))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _special_files(folder: str, names: list[str]) -> list[str]:
    modes = {name: Path(folder, name).lstat().st_mode for name in names}
    return [
        name
        for name, mode in modes.items()
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


def _retry_with_rights(function: Callable[..., Any], path: str, _error: object) -> None:
    for target in (Path(path).parent, Path(path)):
        if target.is_dir() and not target.is_symlink():
            target.chmod(0o700)
    if function is os.unlink or function is os.rmdir:
        function(path)
    else:
        shutil.rmtree(path)
