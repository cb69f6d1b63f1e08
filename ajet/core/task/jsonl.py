"""Reads `jsonl_dataset_file`: tasks from JSON-lines files in UTF-8, one object a line, or from CSV
files (csv_rows.py).

Not covered: compressed files.
"""

import json
from pathlib import Path
from typing import Any

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError, DataError
from ajet.core.task.csv_rows import rows_of_csv
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task

CSV = ".csv"
REFUSED = {
    CSV: "CSV is not read here; use .jsonl",
    ".tsv": "columns between tabs are not read; save it as .csv with commas, or as .jsonl",
    ".parquet": "Parquet is read by ajet.task_reader.type=huggingface_dat_repo alone",
    ".gz": "compressed files are not read; unpack it first",
    ".xlsx": "spreadsheets are not read; save it as .csv",
}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of tasks, JSON lines or CSV."""
    return rows_of_csv(read_text(path), path) if path.suffix == CSV else read_jsonl(path)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Returns the file's rows; empty lines are skipped."""
    if not path.is_file():
        raise DataError(f"{path.absolute()}: no such data file", code=Code.DATA_NOT_FOUND)
    if path.suffix in REFUSED:
        raise DataError(f"{path}: {REFUSED[path.suffix]}", code=Code.DATA_FORMAT)
    return rows_of_lines(read_text(path), path)


def rows_of_lines(text: str, path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file's text, one object a line; empty lines are skipped."""
    lines = text.split("\n")  # splitlines() would also split at a U+2028 inside a string
    return [
        _parse(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()
    ]


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
    """Writes `jsonl_text`."""
    path.write_text(jsonl_text(rows), encoding="utf-8")


def resolve(path: str, base_dirs: list[Path]) -> Path:
    """Looks for a relative path in the YAML's folder and the current one."""
    candidates = [folder / Path(path).expanduser() for folder in base_dirs]
    return next(
        (candidate for candidate in candidates if candidate.exists()), Path(path).expanduser()
    )


def existing_file(path: str, base_dirs: list[Path], where: str) -> Path:
    """Returns the data file that a key of the config names. Raises DataError, with the key
    (`where`) and every path that was tried, when there is none."""
    file = resolve(path, base_dirs)
    if file.is_dir():
        raise DataError(f"{where}: {path}: a folder; give the file in it", code=Code.DATA_NOT_FOUND)
    if not file.is_file():
        tried = dict.fromkeys(str((folder / file).absolute()) for folder in [*base_dirs, Path()])
        raise DataError(
            f"{where}: {path}: no such data file; looked for {', '.join(tried)}",
            code=Code.DATA_NOT_FOUND,
        )
    return file


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        problem = f"not valid JSON: {error.msg.removesuffix(' at')}"
        if line.strip() in ("{", "[", "[{"):
            problem = "an object, or a list, goes on over several lines; write one object a line"
        raise DataError(f"{where}: {problem}", code=Code.ROW_NOT_JSON) from error
    except RecursionError as error:
        raise DataError(
            f"{where}: its values are nested too deeply", code=Code.ROW_NOT_JSON
        ) from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise DataError(f"{where}: not valid JSON: {error}", code=Code.ROW_NOT_JSON) from error
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: a line is one JSON object, got a {type(row).__name__}", code=Code.ROW_FORM
        )
    return row


class JsonlReader(BaseTaskReader):
    """Reads `jsonl_dataset_file.training.file_path` and `.validation.file_path`."""

    def get_training_tasks(self) -> list[Task]:
        path = self.config.ajet.task_reader.jsonl_dataset_file.training.file_path
        if path is None:
            raise ConfigError(
                "ajet.task_reader.jsonl_dataset_file.training.file_path is missing",
                code=Code.KEY_MISSING,
            )
        return self._read(path, "train")

    def get_validation_tasks(self) -> list[Task]:
        path = self.config.ajet.task_reader.jsonl_dataset_file.validation.file_path
        return self._read(path, "validation") if path else []

    def _read(self, path: str, split: str) -> list[Task]:
        key = "training" if split == "train" else split
        where = f"ajet.task_reader.jsonl_dataset_file.{key}.file_path"
        file = existing_file(path, self.config.base_dirs, where)
        return self.tasks_from_rows(
            read_rows(file), is_training=split == "train", split=split, source=str(file)
        )
