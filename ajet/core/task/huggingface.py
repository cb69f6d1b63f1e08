"""Reads `huggingface_dat_repo`: tasks from a data set of the Hub, a local folder or a local file.

    dataset_path: gsm8k/main            the Hub's data set `gsm8k`, configuration `main`
    dataset_path: openai/gsm8k          a Hub data set with one configuration
    dataset_path: data/                 train.jsonl, test.parquet, train/…, data/train-0.parquet
    dataset_path: embedded:arithmetic   comes with this package
    dataset_path: data/train.jsonl      one file: the training split alone

Local JSON lines and Parquet are read without the `datasets` package. Files on disk come before
the Hub (hub.py). Not covered: CSV, compressed files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loguru import logger

from ajet.core.error_codes import Code
from ajet.core.error_text import extra_advice
from ajet.core.errors import ConfigError, DataError
from ajet.core.task.hub import read_hub
from ajet.core.task.jsonl import CSV, read_jsonl, read_text, resolve
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task

EMBEDDED = "embedded:"
EMBEDDED_DIR = Path(__file__).parents[2] / "embedded"
READABLE = (".jsonl", ".json", ".parquet")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


class HuggingFaceReader(BaseTaskReader):
    """Reads the two splits that `huggingface_dat_repo` names."""

    def get_training_tasks(self) -> list[Task]:
        split = self.config.ajet.task_reader.huggingface_dat_repo.training_split
        file = self._single_file()
        rows = self._read(split) if file is None else _read_files([file])
        return self._tasks(rows, split, is_training=True)

    def get_validation_tasks(self) -> list[Task]:
        section = self.config.ajet.task_reader.huggingface_dat_repo
        split = section.validation_split
        if split is None:
            return []
        file = self._single_file()
        if file is None:
            return self._tasks(self._read(split), split, is_training=False)
        if split != type(section)().validation_split:  # the config asks for it
            raise ConfigError(
                f"ajet.task_reader.huggingface_dat_repo.validation_split={split}: {file} is one "
                "file, which is the training split alone; give a folder with a file for each "
                "split, or set validation_split=null",
                code=Code.SPLIT_NOT_FOUND,
            )
        logger.warning(
            "no validation tasks: {} is one file, which is the training split alone; "
            "a folder with train and test files has both",
            file,
        )
        return []

    def _path(self) -> str:
        path = self.config.ajet.task_reader.huggingface_dat_repo.dataset_path
        if path is None:
            raise ConfigError(
                "ajet.task_reader.huggingface_dat_repo.dataset_path is missing",
                code=Code.KEY_MISSING,
            )
        return path

    def _single_file(self) -> Path | None:
        path_on_disk = resolve(self._path(), self.config.base_dirs)
        return path_on_disk if path_on_disk.is_file() else None

    def _read(self, split: str) -> list[dict[str, Any]]:
        return read_split(self._path(), split, self.config.base_dirs)

    def _tasks(self, rows: list[dict[str, Any]], split: str, *, is_training: bool) -> list[Task]:
        return self.tasks_from_rows(rows, is_training=is_training, split=split, source=self._path())


def read_split(path: str, split: str, base_dirs: list[Path]) -> list[dict[str, Any]]:
    """Reads the rows of one split, from disk where `path` exists, else from the Hub. One file has
    no splits: the caller that takes its rows decides what they are."""
    if path.startswith(EMBEDDED):
        return _read_folder(_embedded(path.removeprefix(EMBEDDED)), split)
    path_on_disk = resolve(path, base_dirs)
    if path_on_disk.is_file():
        raise DataError(
            f"{path_on_disk}: one file has no split {split!r}; give a folder of splits",
            code=Code.SPLIT_NOT_FOUND,
        )
    if path_on_disk.is_dir():
        return _read_folder(path_on_disk, split)
    if path.startswith((".", "/", "~")) or path.endswith((*READABLE, CSV)):
        raise DataError(
            f"{path}: no such data folder or file; looked in {', '.join(map(str, base_dirs))}",
            code=Code.DATA_NOT_FOUND,
        )
    return read_hub(path, split)


def _embedded(name: str) -> Path:
    names = sorted(file.parent.name for file in EMBEDDED_DIR.glob("*/train.jsonl"))
    if name not in names:
        raise DataError(
            f"{EMBEDDED}{name}: no such data in this package; there is {names}",
            code=Code.DATA_NOT_FOUND,
        )
    return EMBEDDED_DIR / name


def _read_folder(folder: Path, split: str) -> list[dict[str, Any]]:
    splits = splits_of(folder)
    for file in sorted(folder.glob(f"*{CSV}")):
        if not splits or (split not in splits and file.name.startswith(split)):
            return read_jsonl(file)  # raises the error for CSV
    if not splits:
        raise DataError(
            f"{folder}: no data file here; one of *{', *'.join(READABLE)} is needed",
            code=Code.DATA_FORMAT,
        )
    if split not in splits:
        raise DataError(
            f"{folder}: no split {split!r}; there are {', '.join(sorted(splits))}",
            code=Code.SPLIT_NOT_FOUND,
        )
    files = splits[split]
    other = next((file for file in files if file.suffix != files[0].suffix), None)
    if other is not None:
        raise DataError(
            f"{folder}: {files[0].relative_to(folder)} and {other.relative_to(folder)} are both "
            f"the split {split!r}, in two formats; keep one",
            code=Code.DATA_FORMAT,
        )
    return _read_files(files)


def splits_of(folder: Path) -> dict[str, list[Path]]:
    """Returns split names with their files: train.jsonl, train-00000-of-00002.parquet,
    train/part.jsonl."""
    splits: dict[str, list[Path]] = {}
    for file in sorted(_data_files(folder)):
        nested = file.parent not in (folder, folder / "data")
        name = file.parent.name if nested else file.name.split(".")[0].split("-")[0]
        splits.setdefault(name, []).append(file)
    return splits


def _data_files(folder: Path) -> Iterator[Path]:
    for pattern in ("*", "*/*", "data/*/*"):
        for file in folder.glob(pattern):
            if file.suffix in READABLE and file.name not in NOT_DATA:
                yield file


def _read_files(files: list[Path]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for file in files:
        rows += _read_parquet(file) if file.suffix == ".parquet" else _read_json(file)
    return rows


def _read_json(file: Path) -> list[dict[str, Any]]:
    """Reads JSON lines, or a .json file that is one list of objects."""
    if file.suffix != ".json" or not (text := read_text(file)).lstrip().startswith("["):
        return read_jsonl(file)
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file}:{error.lineno}: not valid JSON: {error.msg}", code=Code.ROW_NOT_JSON
        ) from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise DataError(
                f"{file}: row {number} is a {type(row).__name__}, not an object", code=Code.ROW_FORM
            )
    return rows


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise DataError(
            f"{file}: Parquet needs pyarrow: {extra_advice('pyarrow')}",
            code=Code.PACKAGE_MISSING,
        ) from error
    try:
        return parquet.read_table(file).to_pylist()
    except (ArrowException, OSError) as error:
        raise DataError(
            f"{file}: not a readable Parquet file: {error}", code=Code.DATA_UNREADABLE
        ) from error
