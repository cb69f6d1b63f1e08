"""Writes data sets in one form: `train` and `test` files for the readers. GSM8K and MATH come from
the Hub or from local files; `arithmetic` is generated from a seed.
"""

import io
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ajet.core.errors import DataError, DataNotFound, RowError
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import write_output, writing_output
from ajet.core.task.jsonl import jsonl_text
from ajet.core.task.row_files import read_split, splits_of
from ajet.core.text.error_text import extra_advice
from ajet.judges.answer import final_part
from ajet.sources import arithmetic

DataName = Literal["gsm8k", "math-lighteval", "arithmetic"]
SPLITS = ("train", "test")
HUB = {"gsm8k": "openai/gsm8k/main", "math-lighteval": "DigitalLearningGmbH/MATH-lighteval"}
FIELDS = {"gsm8k": ("question", "answer"), "math-lighteval": ("problem", "solution")}
ARITHMETIC_SIZES = {"train": 4096, "test": 512}


@dataclass(frozen=True)
class DataRecipe:
    """Which data set to write, how many rows of each split (None: all), and columns to add."""

    name: DataName
    source: Path | None = None
    sizes: dict[str, int | None] = field(default_factory=dict)
    seed: int = 0
    columns: dict[str, str] = field(default_factory=dict)

    def rows(self, split: str) -> list[dict[str, Any]]:
        size = self.sizes.get(split)
        if self.name == "arithmetic":
            problems_ = itertools.islice(
                arithmetic.problems(split, self.seed),
                ARITHMETIC_SIZES[split] if size is None else size,
            )
            pairs = [(problem.row["question"], problem.row["answer"]) for problem in problems_]
        else:
            pairs = self._read(split)[:size]
        return [
            {"task_id": f"{self.name}-{split}-{index}", "question": question, "answer": answer}
            | {"data_source": self.name}
            | self.columns
            for index, (question, answer) in enumerate(pairs)
        ]

    def _read(self, split: str) -> list[tuple[str, str]]:
        source = str(self.source.resolve()) if self.source else HUB[self.name]
        if self.source and not self.source.exists():
            raise DataNotFound(f"--from {self.source}: no such folder or file")
        if self.source and self.source.is_file():
            raise DataError(
                f"--from {self.source}: one file cannot be both splits; give the folder that has "
                "train and test files",
                code=Code.SPLIT_NOT_FOUND,
            )
        question, answer = FIELDS[self.name]
        pairs = []
        for number, row in enumerate(read_split(source, split, []), 1):
            if question not in row or answer not in row:
                raise RowError(
                    f"{source}: {split} row {number} lacks {question!r} or {answer!r}; "
                    f"it has {', '.join(row)}"
                )
            text = row[answer]
            if not isinstance(row[question], str) or not isinstance(text, str):
                raise RowError(
                    f"{source}: {split} row {number}: {question!r} and {answer!r} must be text"
                )
            # MATH's solutions end in \boxed{}; judges compare with what is in it.
            pairs.append((row[question], final_part(text) if answer == "solution" else text))
        return pairs


def write_splits(
    recipe: DataRecipe, out: Path, form: Literal["jsonl", "parquet"], *, overwrite: bool = False
) -> dict[Path, int]:
    """Writes train and test, and returns the number of rows of each file. Raises `DataError` if one
    exists already, unless `overwrite` is set."""
    _refuse_existing(out, form, overwrite)
    rows = {out / f"{split}.{form}": recipe.rows(split) for split in SPLITS}
    contents = {path: _content(split_rows, form) for path, split_rows in rows.items()}
    with writing_output(out):
        out.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        write_output(path, content)
    return {path: len(split_rows) for path, split_rows in rows.items()}


def _refuse_existing(out: Path, form: str, overwrite: bool) -> None:
    """Raises `DataError` if `out` has a split. One in another file type must not be overwritten
    either: a reader would then find the split twice."""
    splits = splits_of(out)
    for split in SPLITS:
        for file in splits.get(split, []):
            if file != out / f"{split}.{form}":
                raise DataError(
                    f"{file}: --out {out} already has a {split} split; remove it or choose "
                    "another --out",
                    code=Code.OUTPUT_EXISTS,
                )
    existing = [file for split in SPLITS for file in splits.get(split, [])]
    if existing and not overwrite:
        raise DataError(
            f"--out {out}: {existing[0]} exists already; add --overwrite to replace it, or name "
            "another folder",
            code=Code.OUTPUT_EXISTS,
        )


def _content(rows: list[dict[str, Any]], form: str) -> str | bytes:
    if form == "jsonl":
        return jsonl_text(rows)
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise DataError(
            f"Parquet needs pyarrow: {extra_advice('pyarrow')}", code=Code.PACKAGE_MISSING
        ) from error
    table = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    return table.getvalue()
