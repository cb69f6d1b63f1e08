"""Reads the files of a benchmark, from its installed package or from a user's folder."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.task.jsonl import rows_of_lines


class SuiteDataError(DataError):
    """Raised when a benchmark's files do not have the form that its suite reads."""

    usual_code = Code.SUITE_DATA


def package_folder(module: str, *, install: str, wanted_by: str) -> Path:
    """Returns the folder of an installed package, without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissing(f"{wanted_by} needs {module}: {install}")
    return Path(spec.submodule_search_locations[0])


def read_json_lines(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file with one JSON object a line, gzipped if its name ends in .gz."""
    return rows_of_lines(read_text(file), file)


def read_json(file: Path) -> Any:
    try:
        return json.loads(read_text(file))
    except ValueError as error:
        raise SuiteDataError(f"{file}: not JSON: {error}") from error


def field(
    row: dict[str, Any], name: str, expected_type: type | tuple[type, ...], source: object
) -> Any:
    """Returns a field of a row; raises DataError if it is missing or of another type."""
    if not isinstance(row.get(name), expected_type):
        problem = f"is of type {type(row[name]).__name__}" if name in row else "is missing"
        raise SuiteDataError(
            f"{source}: row {row.get('id', row.get('task_id', '?'))}: {name} {problem}"
        )
    return row[name]


def read_text(file: Path) -> str:
    """Returns the text of a file, gzipped if its name ends in .gz."""
    try:
        if file.suffix == ".gz":
            with gzip.open(file, "rt", encoding="utf-8") as opened:
                return opened.read()
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise SuiteDataError(f"{file}: cannot be read: {error}") from error
