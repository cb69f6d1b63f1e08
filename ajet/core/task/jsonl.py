"""`jsonl_dataset_file`: tasks from JSON-lines files, one object a line."""

import json
from pathlib import Path
from typing import Any

from ajet.core.errors import ConfigError, DataError
from ajet.core.task.reader import BaseTaskReader, tasks_from_rows
from ajet.core.task.task import Task


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The file's rows; empty lines are skipped."""
    if not path.is_file():
        raise DataError(f"{path}: no such data file")
    rows = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                rows.append(_parse(line, f"{path}:{number}"))
    return rows


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    """One object a line, text as it is."""
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")


def resolve(path: str, base_dirs: list[Path]) -> Path:
    """A relative path is looked for in the YAML's folder and the current one."""
    candidates = [folder / Path(path).expanduser() for folder in base_dirs]
    return next((place for place in candidates if place.exists()), Path(path).expanduser())


def _parse(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON: {error.msg}") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a line is one JSON object, got a {type(row).__name__}")
    return row


class JsonlReader(BaseTaskReader):
    """Reads `jsonl_dataset_file.training.file_path` and `.validation.file_path`."""

    def get_training_tasks(self) -> list[Task]:
        path = self.config.ajet.task_reader.jsonl_dataset_file.training.file_path
        if path is None:
            raise ConfigError("ajet.task_reader.jsonl_dataset_file.training.file_path is missing")
        return self._read(path, "train")

    def get_validation_tasks(self) -> list[Task]:
        path = self.config.ajet.task_reader.jsonl_dataset_file.validation.file_path
        return self._read(path, "validation") if path else []

    def _read(self, path: str, split: str) -> list[Task]:
        file = resolve(path, self.config.base_dirs)
        field = self.config.ajet.task_reader.query_field
        return tasks_from_rows(read_jsonl(file), split=split, source=str(file), query_field=field)
