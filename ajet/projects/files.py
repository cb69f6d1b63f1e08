"""Makes a project's files from templates, and writes them beside what is there.

    templates/shared/vscode/launch.json   ->   .vscode/launch.json
    templates/math/train.yaml.jinja       ->   train.yaml, with its variables filled in

A file that ends in .jinja is a template of Jinja; every other one is taken as it is. Names in
DOTTED have no dot in the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError

TEMPLATES = Path(__file__).parent / "templates"
DOTTED = ("vscode", "gitignore")
TEMPLATE = ".jinja"


def rendered(folders: Sequence[str], variables: Mapping[str, Any]) -> dict[str, str]:
    """Returns the text of each file of these folders by the path that it is to have. A file of a
    later folder replaces that of an earlier one."""
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
            files[_written_name(file.relative_to(root))] = text
    return files


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes the files into the folder. Raises ConfigError, and writes nothing, where one is there
    already."""
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise ConfigError(
            f"{folder}: {', '.join(there)} {'is' if len(there) == 1 else 'are'} there already, and "
            "nothing was written: move what is there away, or give another folder",
            code=Code.OUTPUT_EXISTS,
        )
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be written: {error.strerror}; give another folder",
                code=Code.OUTPUT_NOT_WRITTEN,
            ) from error


def _written_name(path: Path) -> str:
    """Returns the path in the project, with the dots that names in the package lack."""
    first, *others = path.parts
    parts = [f".{first}" if first in DOTTED else first, *others]
    return "/".join(parts).removesuffix(TEMPLATE)
