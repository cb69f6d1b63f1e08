"""Reads the rows of data files, of folders of them, and of data sets on the Hub.

    data/train.jsonl             one file: JSON lines, JSON, CSV, Parquet or Arrow
    data/                        train.jsonl, test.parquet, train/…, data/train-0.parquet
    saved/                       what `save_to_disk` of the package `datasets` writes
    openai/gsm8k, gsm8k/main     a data set of the Hub, where no such folder is on disk (hub.py)
    embedded:arithmetic          comes with this package

No local file needs the package `datasets`.
"""

import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, DataNotFound, RowError
from ajet.core.errors.codes import Code
from ajet.core.task.arrow_rows import read_table
from ajet.core.task.hub import read_hub
from ajet.core.task.jsonl import (
    read_text,
    refuse_format,
    refuse_surrogates,
    resolve,
    rows_of_lines,
)
from ajet.core.task.reader import QUERY_FIELDS
from ajet.core.text.plain_value import ESCAPED_SURROGATE

EMBEDDED = "embedded:"
EMBEDDED_DIR = Path(__file__).parents[2] / "embedded"
TABLES = (".parquet", ".arrow")
READABLE = (".jsonl", ".json", ".csv", *TABLES)
NOT_DATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
SPLITS = {"train", "test", "validation", "dev", "val"}
_SHARD = re.compile(r"(.*-)\d{5}-of-(\d{5})(\..*)")
SAVED_STATE = "state.json"
"""Is in each folder that `Dataset.save_to_disk` wrote, and lists its files."""
ROW_FIELDS = {*QUERY_FIELDS, "messages", "conversations", "instruction"}
"""Fields that mark a JSON object as a row, not as an object that holds rows."""


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of one data file, whose suffix says its format."""
    suffix = file.suffix.lower()
    if suffix in TABLES:
        return read_table(file)
    refuse_format(file)
    text = read_text(file)
    if suffix == ".csv":
        return rows_of_csv(text, file)
    return _rows_of_json(text, file) if suffix == ".json" else rows_of_lines(text, file)


def _rows_of_json(text: str, file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a .json file: one list of objects, an object that holds such a list, or
    JSON lines."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith("["):
            return rows_of_lines(text, file)  # raises with the line of the mistake
        line = getattr(error, "lineno", 1)
        problem = getattr(error, "msg", "its values are nested too deeply")
        raise DataError(
            f"{file}:{line}: not valid JSON: {problem}", code=Code.ROW_NOT_JSON
        ) from error
    rows = value
    if isinstance(value, dict) and (rows := _held_rows(value, file)) is None:
        rows = [value]
    if not isinstance(rows, list):
        raise RowError(f"{file}: a {type(value).__name__} is not a list of rows")
    may_be_cut = ESCAPED_SURROGATE.search(text) is not None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise RowError(f"{file}: row {number} is a {type(row).__name__}, not an object")
        if may_be_cut:
            refuse_surrogates(row, f"{file}: row {number}")
    return rows


def _held_rows(value: dict[str, Any], file: Path) -> list[dict[str, Any]] | None:
    """Returns the rows that the only object of a file holds, as in `{"data": [row, …]}`, in the
    forms of pandas, or in an answer of the Hub's dataset viewer; None where it is a row itself.
    Raises RowError where it may be either."""
    is_row = bool(value.keys() & ROW_FIELDS)
    if len(value) == 1 and not is_row:
        name, inner = next(iter(value.items()))
        wraps = isinstance(inner, dict) and not name.isdecimal()
        if wraps and (rows := _held_rows(inner, file)) is not None:
            return rows
    if (rows := _pandas_rows(value)) is not None:
        return rows
    if is_row:
        return None
    if (rows := _viewer_rows(value.get("rows"), file)) is not None:
        return rows
    lists = [
        name
        for name, inner in value.items()
        if isinstance(inner, list) and all(isinstance(element, dict) for element in inner)
    ]
    if len(value) == len(lists) == 1:
        return value[lists[0]]
    if not any(value[name] for name in lists):
        return None
    raise RowError(
        f"{file}: one object with {', '.join(value)}: it may be a row, or hold rows in "
        f"{' or '.join(lists)}; write the rows as one list, or one object a line"
    )


def _pandas_rows(value: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Returns the rows of `DataFrame.to_json`: by index or id, `{"0": row, …}`; by column,
    `{"question": {"0": …, "1": …}, …}`; or split, `{"columns": […], "index": […], "data": [[…],
    …]}`."""
    inner = list(value.values())
    if value.keys() == {"columns", "index", "data"} and all(isinstance(v, list) for v in inner):
        names, rows = value["columns"], value["data"]
        is_table = all(isinstance(row, list) and len(row) == len(names) for row in rows)
        return [dict(zip(names, row, strict=True)) for row in rows] if is_table else None
    if not inner or not all(isinstance(v, dict) for v in inner):
        return None
    if all(map(str.isdecimal, value)) or all(v.keys() & ROW_FIELDS for v in inner):
        return inner
    index = inner[0].keys()
    if not index or not all(map(str.isdecimal, index)) or any(v.keys() != index for v in inner):
        return None
    return [{name: column[number] for name, column in value.items()} for number in index]


def _viewer_rows(entries: Any, file: Path) -> list[dict[str, Any]] | None:
    """Returns the rows of `{"rows": [{"row_idx": 0, "row": row, "truncated_cells": []}, …]}`."""
    if not isinstance(entries, list) or not entries:
        return None
    if not all(isinstance(each, dict) and {"row_idx", "row"} <= each.keys() for each in entries):
        return None
    cut = next((each for each in entries if each.get("truncated_cells")), None)
    if cut is not None:
        raise RowError(
            f"{file}: the dataset viewer cut {', '.join(cut['truncated_cells'])} of row "
            f"{cut['row_idx']}; take the data set's own files"
        )
    return [each["row"] for each in entries]


def rows_of_csv(text: str, path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a CSV file with commas, quotes as spreadsheets write them, and a header.
    Empty lines are skipped.

    ticket,team
    "Charged twice, help",billing   ->   {"ticket": "Charged twice, help", "team": "billing"}
    """
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[dict[str, Any]] = []
    try:
        header = [name.strip() for name in next(lines, [])]
        _check_header(header, path)
        for cells in lines:
            if len(cells) == len(header):
                # Values are text, since a CSV has no types. An empty cell is None, so that a row
                # without an answer is reported as one.
                rows.append(dict(zip(header, (cell or None for cell in cells), strict=True)))
            elif cells:
                raise RowError(
                    f"{path}:{lines.line_num}: {len(cells)} cells, and the header has "
                    f"{len(header)}; put text that has a comma into double quotes"
                )
    except csv.Error as error:
        raise RowError(f"{path}:{lines.line_num}: not valid CSV: {error}") from error
    return rows


def _check_header(header: list[str], path: Path) -> None:
    duplicate = next((name for name, number in Counter(header).items() if number > 1), None)
    if duplicate is not None:
        raise RowError(
            f"{path}:1: the header has {duplicate!r} twice; give each column a different name"
        )
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise RowError(
            f"{path}:1: the header {header[0]!r} has no comma; save the file with commas between "
            "its columns"
        )


def one_split(path: str, base_dirs: list[Path]) -> Path | None:
    """Returns the file, or the folder of a saved `Dataset`, that is all of one split; None where
    the path is anything else."""
    place = resolve(path, base_dirs)
    return place if place.is_file() or (place / SAVED_STATE).is_file() else None


def read_place(place: Path) -> list[dict[str, Any]]:
    """Returns all rows of a file or folder that `one_split` returned."""
    return _read_files([place] if place.is_file() else saved_files(place))


def read_split(path: str, split: str, base_dirs: list[Path]) -> list[dict[str, Any]]:
    """Reads the rows of one split, from disk where `path` exists, else from the Hub. Raises
    DataError for one file, which has no splits (`read_place`)."""
    if path.startswith(EMBEDDED):
        return _read_folder(_embedded(path.removeprefix(EMBEDDED)), split)
    path_on_disk = resolve(path, base_dirs)
    if one_split(path, base_dirs) is not None:
        noun = "one file" if path_on_disk.is_file() else "one saved Dataset"
        raise DataError(
            f"{path_on_disk}: {noun} has no split {split!r}; give a folder of splits",
            code=Code.SPLIT_NOT_FOUND,
        )
    if path_on_disk.is_dir():
        return _read_folder(path_on_disk, split)
    # Whatever else is not on disk may be a name on the Hub.
    if path.startswith((".", "/", "~")) or path.endswith(READABLE):
        raise DataNotFound(
            f"{path}: no such data folder or file; looked in {', '.join(map(str, base_dirs))}"
        )
    return read_hub(path, split)


def folder_of(path: str, split: str, base_dirs: list[Path]) -> Path | None:
    """Returns the folder of a split's files, where the images that its rows name are; None where
    the path is not on disk."""
    place = resolve(path, base_dirs)
    if place.is_dir():
        files = splits_of(place).get(split)
        return files[0].parent if files else place
    return place.parent if place.is_file() else None


def _embedded(name: str) -> Path:
    names = sorted(file.parent.name for file in EMBEDDED_DIR.glob("*/train.jsonl"))
    if name not in names:
        raise DataNotFound(f"{EMBEDDED}{name}: no such data in this package; there is {names}")
    return EMBEDDED_DIR / name


def _read_folder(folder: Path, split: str) -> list[dict[str, Any]]:
    splits = splits_of(folder)
    inside = sorted(folder.iterdir())
    if split not in splits:
        inner = next((each for each in inside if each.is_dir() and split in splits_of(each)), None)
        if inner is not None:
            raise DataError(
                f"{folder}: no split {split!r} but in its folders: give {inner} as the path",
                code=Code.SPLIT_NOT_FOUND,
            )
    read = {file.name.split(".")[0] for file in splits.get(split, ())}
    for file in inside:
        # train.jsonl.gz next to train.jsonl is the same; next to train-0.jsonl it is another part.
        if not splits or (_own_split(file) == split and file.name.split(".")[0] not in read):
            refuse_format(file)
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
    odd_file = next((file for file in files if file.suffix != files[0].suffix), None)
    if odd_file is not None:
        raise DataError(
            f"{folder}: {files[0].relative_to(folder)} and {odd_file.relative_to(folder)} are both "
            f"the split {split!r}, in two formats; keep one",
            code=Code.DATA_FORMAT,
        )
    _check_shards(files)
    return _read_files(files)


def _check_shards(files: list[Path]) -> None:
    """Raises DataError where a file says that there are more: train-00000-of-00002.parquet."""
    names = {file.name for file in files}
    for start, count, end in {shard.groups() for shard in map(_SHARD.fullmatch, names) if shard}:
        for number in range(int(count)):
            if (missing := f"{start}{number:05d}-of-{count}{end}") not in names:
                raise DataNotFound(f"{files[0].parent}: of {count} files {missing} is not here")


def _own_split(file: Path) -> str:
    """Returns the split that a file's name begins with."""
    return file.name.split(".")[0].split("-")[0]


def splits_of(folder: Path) -> dict[str, list[Path]]:
    """Returns split names with their files: train.jsonl, train-00000-of-00002.parquet,
    train/part.jsonl."""
    saved = [state.parent for state in sorted(folder.glob(f"*/{SAVED_STATE}"))]
    splits = {saved_folder.name: saved_files(saved_folder) for saved_folder in saved}
    files = [file for file in sorted(_data_files(folder)) if file.parent not in saved]
    own = defaultdict[Path, set[str]](set)
    for file in files:
        own[file.parent].add(_own_split(file))
    for file in files:
        # train/part.jsonl is named by its folder; the Hub's data/train-0.parquet by itself.
        nested = file.parent not in (folder, folder / "data")
        if nested and len(own[file.parent] & SPLITS) > 1:
            continue  # a data set with splits in it, as main/ of a clone of the Hub's gsm8k
        name = file.parent.name if nested else _own_split(file)
        splits.setdefault(name, []).append(file)
    return splits


def _data_files(folder: Path) -> Iterator[Path]:
    for pattern in ("*", "*/*", "data/*/*"):
        for file in folder.glob(pattern):
            if file.suffix.lower() in READABLE and file.name not in NOT_DATA:
                yield file


def saved_files(folder: Path) -> list[Path]:
    """Returns the files of a `Dataset` that was saved here."""
    # The other .arrow files of the folder are caches of datasets that were computed from it.
    state_file = folder / SAVED_STATE
    try:
        names = [entry["filename"] for entry in json.loads(read_text(state_file))["_data_files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{state_file}: not written by save_to_disk of the package datasets",
            code=Code.DATA_FORMAT,
        ) from error
    return [folder / name for name in names]


def _read_files(files: list[Path]) -> list[dict[str, Any]]:
    return [row for file in files for row in read_rows(file)]
