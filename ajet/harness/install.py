"""Finds what a sandbox must show of an installed program: the folders that it and its interpreter
are in.

    …/node_modules/.bin/qwen      the folder that holds node_modules
    …/venv/bin/aider              the virtual environment, and the Python it was made from
    /usr/bin/…                    nothing: the system's folders are shown anyway
    elsewhere                     the folder of the file itself
"""

from __future__ import annotations

from pathlib import Path


def install_folders(executable: Path) -> list[str]:
    """Returns the folders of a program, without those that hold one another."""
    found: list[Path] = []
    for path in (executable, executable.resolve()):
        found += _of_file(path)
    outer = [path for path in found if not any(other in path.parents for other in found)]
    return [str(path) for path in dict.fromkeys(outer) if not path.is_relative_to("/usr")]


def _of_file(path: Path) -> list[Path]:
    for parent in reversed(path.parents):
        if parent.name == "node_modules":
            return [parent.parent]
    for parent in path.parents:
        if (parent / "pyvenv.cfg").is_file():
            base = (parent / "bin" / "python").resolve().parent.parent
            return [parent, base]
    return [path.parent]
