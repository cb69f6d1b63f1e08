"""`huggingface_dat_repo`: tasks from a data set of the Hub, a local folder or a local file.

    dataset_path: gsm8k/main            the Hub's data set `gsm8k`, configuration `main`
    dataset_path: openai/gsm8k          a Hub data set with one configuration
    dataset_path: data/                 train.jsonl, test.parquet, train/…, data/train-0.parquet
    dataset_path: embedded:arithmetic   comes with this package
    dataset_path: data/train.jsonl      one file, which is its own only split

Local JSON lines and Parquet are read without the `datasets` package. What lies on disk comes before
the Hub. Not covered: streaming, scripts in data sets.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ajet.core.errors import ConfigError, DataError
from ajet.core.task.jsonl import read_jsonl, resolve
from ajet.core.task.reader import BaseTaskReader, tasks_from_rows
from ajet.core.task.task import Task

EMBEDDED = "embedded:"
EMBEDDED_DIR = Path(__file__).parents[2] / "embedded"
READABLE = (".jsonl", ".json", ".parquet")
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


class HuggingFaceReader(BaseTaskReader):
    """Reads the two splits that `huggingface_dat_repo` names."""

    def get_training_tasks(self) -> list[Task]:
        return self._read(self.config.ajet.task_reader.huggingface_dat_repo.training_split)

    def get_validation_tasks(self) -> list[Task]:
        split = self.config.ajet.task_reader.huggingface_dat_repo.validation_split
        if split is None:
            return []
        return self._read(split)

    def _read(self, split: str) -> list[Task]:
        reader = self.config.ajet.task_reader
        path = reader.huggingface_dat_repo.dataset_path
        if path is None:
            raise ConfigError("ajet.task_reader.huggingface_dat_repo.dataset_path is missing")
        rows = read_split(path, split, self.config.base_dirs)
        return tasks_from_rows(rows, split=split, source=path, query_field=reader.query_field)


def read_split(path: str, split: str, base_dirs: list[Path]) -> list[dict[str, Any]]:
    """The rows of one split, from disk where `path` is there, else from the Hub."""
    if path.startswith(EMBEDDED):
        return _read_folder(_embedded(path.removeprefix(EMBEDDED)), split)
    place = resolve(path, base_dirs)
    if place.is_file():
        return _read_files([place])
    if place.is_dir():
        return _read_folder(place, split)
    if path.startswith((".", "/", "~")) or path.endswith(READABLE):
        raise DataError(f"{path}: no such data folder or file; looked in {_listed(base_dirs)}")
    return _read_hub(path, split)


def _embedded(name: str) -> Path:
    names = sorted(file.parent.name for file in EMBEDDED_DIR.glob("*/train.jsonl"))
    if name not in names:
        raise DataError(f"{EMBEDDED}{name}: no such data in this package; there is {names}")
    return EMBEDDED_DIR / name


def _read_folder(folder: Path, split: str) -> list[dict[str, Any]]:
    splits = _splits_of(folder)
    if not splits:
        raise DataError(f"{folder}: no data file here; one of *{', *'.join(READABLE)} is needed")
    if split not in splits:
        raise DataError(f"{folder}: no split {split!r}; there are {', '.join(sorted(splits))}")
    return _read_files(splits[split])


def _splits_of(folder: Path) -> dict[str, list[Path]]:
    """Split names with their files: train.jsonl, train-00000-of-00002.parquet, train/part.jsonl."""
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
    """JSON lines, or a .json file that is one list of objects."""
    import json

    if file.suffix == ".json" and file.read_text(encoding="utf-8").lstrip().startswith("["):
        try:
            return list(json.loads(file.read_text(encoding="utf-8")))
        except json.JSONDecodeError as error:
            raise DataError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from error
    return read_jsonl(file)


def _read_parquet(file: Path) -> list[dict[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError as error:
        raise DataError(f"{file}: Parquet needs pyarrow: pip install 'ajet[datasets]'") from error
    try:
        return parquet.read_table(file).to_pylist()
    except (ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Parquet file: {error}") from error


def _read_hub(path: str, split: str) -> list[dict[str, Any]]:
    """`name` or `name/config` on the Hub, through the `datasets` package."""
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise DataError(
            f"{path}: no such local folder, and a Hub data set needs: pip install 'ajet[datasets]'"
        ) from error
    failure: Exception | None = None
    for name, config in _hub_names(path):
        try:
            return [dict(row) for row in load_dataset(name, config, split=split)]  # pyright: ignore[reportArgumentType, reportCallIssue]
        except ValueError as error:
            raise DataError(f"{path}: {' '.join(str(error).split())}") from error
        except ConnectionError as error:
            failure = error
            break
        except (OSError, RuntimeError) as error:  # not on the Hub under this name
            failure = error
    raise DataError(
        f"{path}: neither a local folder nor reachable on the Hub ({type(failure).__name__}). "
        "Offline, write a folder with `ajet prepare-data NAME --from FILES --out DIR` and set "
        "ajet.task_reader.huggingface_dat_repo.dataset_path to it"
    )


def _hub_names(path: str) -> list[tuple[str, str | None]]:
    """`gsm8k/main` may be owner/name or name/config: gsm8k has a home of its own on the Hub."""
    parts = path.split("/")
    if len(parts) == 3:
        return [("/".join(parts[:2]), parts[2])]
    if parts == ["gsm8k", "main"] or parts == ["gsm8k", "socratic"]:
        return [("openai/gsm8k", parts[1])]
    if len(parts) == 2:
        return [(path, None), (parts[0], parts[1])]
    return [(path, None)]


def _listed(folders: list[Path]) -> str:
    return ", ".join(map(str, folders))
