"""Makes a project's files from templates, and writes them next to existing ones.

    templates/shared/vscode/launch.json   ->   .vscode/launch.json
    templates/math/train.yaml.jinja       ->   train.yaml, with its variables filled in

Only files that end in .jinja are templates. Names in DOTTED have no dot in the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code

TEMPLATES = Path(__file__).parent / "templates"
SKILL = Path(__file__).parent / "skill" / "SKILL.md"
"""Instructions for coding agents (`ajet skill`)."""
DOTTED = ("vscode", "gitignore")
TEMPLATE = ".jinja"


def rendered(folders: Sequence[str], variables: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text of each file of these folders by its path in the project. A file of a later
    folder replaces that of an earlier one."""
    from jinja2 import Environment, StrictUndefined

    jinja = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    files: dict[str, str] = {}
    for folder in folders:
        root = TEMPLATES / folder
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            if "__pycache__" in file.parts:
                continue
            text = file.read_text(encoding="utf-8")
            if file.suffix == TEMPLATE:
                text = jinja.from_string(text).render(variables)
            # The dots that names in the package lack.
            first, *rest = file.relative_to(root).parts
            path = "/".join([f".{first}" if first in DOTTED else first, *rest])
            files[path.removesuffix(TEMPLATE)] = text
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files into the folder, or raises ConfigError if any of them exists already."""
    # All names are checked before the first file is written.
    existing = [name for name in files if (folder / name).exists()]
    if existing:
        verb = "is" if len(existing) == 1 else "are"
        raise ConfigError(
            f"{folder}: {', '.join(existing)} {verb} there already, and "
            "nothing was written: move what is there away, or give another folder",
            code=Code.OUTPUT_EXISTS,
        )
    for name, text in files.items():
        write_file(folder / name, text)


def write_file(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; give another folder",
            code=Code.OUTPUT_NOT_WRITTEN,
        ) from error
