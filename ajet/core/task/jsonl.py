"""Reads and writes JSON lines in UTF-8, one object a line, and finds data files."""

import json
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, DataNotFound, RowError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import windows_advice
from ajet.core.text.plain_value import ESCAPED_SURROGATE, has_surrogates

REFUSED = {
    ".tsv": "columns between tabs are not read; save it as .csv with commas, or as .jsonl",
    **dict.fromkeys(
        (".gz", ".zst", ".bz2", ".xz", ".zip", ".7z"),
        "compressed files are not read; unpack it first",
    ),
    ".pq": "rename it to .parquet",
    ".xlsx": "spreadsheets are not read; save it as .csv",
}


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the file's rows; empty lines are skipped."""
    if not path.is_file():
        raise DataNotFound(f"{path.absolute()}: no such data file")
    if path.suffix in (".csv", ".parquet", ".arrow"):
        raise DataError(f"{path}: only JSON lines are read here; use .jsonl", code=Code.DATA_FORMAT)
    refuse_format(path)
    return rows_of_lines(read_text(path), path)


def refuse_format(path: Path) -> None:
    """Raises DataError for a format that nothing reads, with what to do about it."""
    if problem := REFUSED.get(path.suffix.lower()):
        raise DataError(f"{path}: {problem}", code=Code.DATA_FORMAT)


def rows_of_lines(text: str, path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file's text, one object a line; empty lines are skipped."""
    lines = text.split("\n")  # splitlines() would also split at a U+2028 inside a string
    return [
        _parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]


def refuse_surrogates(row: dict[str, Any], location: str) -> None:
    """Raises RowError for a text that is not Unicode, which a tokenizer would read as `?`."""
    if has_surrogates(row):
        raise RowError(
            f"{location}: a text has half of a character (a lone surrogate, \\ud800 to \\udfff); "
            "remove it, or write the whole character"
        )


def read_text(path: Path) -> str:
    """Returns the whole text of a data file, with or without a byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}:{line}: not UTF-8; save the file in UTF-8", code=Code.ROW_NOT_JSON
        ) from error
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read: {error.strerror}", code=Code.DATA_UNREADABLE
        ) from error


def jsonl_text(rows: list[dict[str, Any]]) -> str:
    """Returns one object a line, text unescaped."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text(jsonl_text(rows), encoding="utf-8")


def resolve(path: str, base_dirs: list[Path]) -> Path:
    """Returns the first of the path's locations below `base_dirs` that exists, else the path."""
    expanded = Path(path).expanduser()
    candidates = (folder / expanded for folder in base_dirs)
    return next((candidate for candidate in candidates if candidate.exists()), expanded)


def existing_file(path: str, base_dirs: list[Path], key: str) -> Path:
    """Returns the data file that the config's `key` names. Raises DataError, with every path that
    was tried, when there is none."""
    file = resolve(path, base_dirs)
    if file.is_dir():
        raise DataNotFound(f"{key}: {path}: a folder; give the file in it")
    if not file.is_file():
        tried = dict.fromkeys(str((folder / file).absolute()) for folder in [*base_dirs, Path()])
        raise DataNotFound(
            f"{key}: {path}: no such data file; looked for {', '.join(tried)}{windows_advice(path)}"
        )
    return file


def _parse(line: str, location: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg.removesuffix(' at')}"
        if line.strip() in ("{", "[", "[{"):
            problem = "an object or a list spans several lines; write one object a line"
        raise DataError(f"{location}: {problem}", code=Code.ROW_NOT_JSON) from error
    except RecursionError as error:
        raise DataError(
            f"{location}: its values are nested too deeply", code=Code.ROW_NOT_JSON
        ) from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise DataError(f"{location}: not valid JSON: {error}", code=Code.ROW_NOT_JSON) from error
    if not isinstance(row, dict):
        raise RowError(f"{location}: a line is one JSON object, got a {type(row).__name__}")
    if ESCAPED_SURROGATE.search(line):
        refuse_surrogates(row, location)
    return row
