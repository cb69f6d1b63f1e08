"""Reads `dataset`: tasks from files, folders and data sets of the Hub, in every format alike.

dataset: {training: data/}                                        its splits train and test
dataset: {training: a.parquet, validation: b.jsonl}               two files
huggingface_dat_repo: {dataset_path: data/}                       the first, as AgentJet has it
jsonl_dataset_file: {training: {file_path: a.jsonl}, …}           the second, as AgentJet has it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loguru import logger

from ajet.core.config.task_reader import Dataset
from ajet.core.errors import ConfigError, KeyMissing
from ajet.core.errors.codes import Code
from ajet.core.task.chat_rows import unread_chat_fields
from ajet.core.task.jsonl import existing_file
from ajet.core.task.preference_rows import unread_preference_fields
from ajet.core.task.reader import BaseTaskReader, unread_fields
from ajet.core.task.row_files import folder_of, one_split, read_place, read_split
from ajet.core.task.task import Task

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig

KEYS = {
    "dataset": ("dataset.training", "dataset.validation"),
    "huggingface_dat_repo": ("huggingface_dat_repo.dataset_path", ""),
    "jsonl_dataset_file": (
        "jsonl_dataset_file.training.file_path",
        "jsonl_dataset_file.validation.file_path",
    ),
}
"""Maps the reader's types to the keys that name the training and the validation data."""


class DatasetReader(BaseTaskReader):
    """Reads the two files or folders, or the two splits of one, that the config names.
    `unread_columns` are the rows' fields, so far, that ajet itself does not read."""

    def __init__(self, config: AjetConfig) -> None:
        super().__init__(config)
        self.unread_columns: set[str] = set()
        reader = config.ajet.task_reader
        # The other types are AgentJet's keys for the same thing.
        self._section = reader.dataset
        if reader.type == "jsonl_dataset_file":
            files = reader.jsonl_dataset_file
            self._section = Dataset(
                training=files.training.file_path,
                validation=files.validation.file_path,
                validation_split=None,
            )
        elif reader.type == "huggingface_dat_repo":
            repo = reader.huggingface_dat_repo
            self._section = Dataset(
                training=repo.dataset_path,
                training_split=repo.training_split,
                validation_split=repo.validation_split,
            )

    def get_training_tasks(self) -> list[Task]:
        path = self._section.training
        if path is None:
            key = KEYS[self.config.ajet.task_reader.type][0]
            raise KeyMissing(f"ajet.task_reader.{key} is missing")
        return self._tasks(path, self._section.training_split, is_training=True)

    def get_validation_tasks(self) -> list[Task]:
        section = self._section
        split = section.validation_split
        if section.validation is not None:
            return self._tasks(section.validation, split or "validation", is_training=False)
        if split is None or section.training is None:
            return []
        place = one_split(section.training, self.config.base_dirs)
        if place is None:
            return self._tasks(section.training, split, is_training=False)
        noun = "one file" if place.is_file() else "one saved Dataset"
        if split != Dataset().validation_split:  # the config names this split, so it is needed
            name = self.config.ajet.task_reader.type
            raise ConfigError(
                f"ajet.task_reader.{name}.validation_split={split}: {place} is {noun}, which is "
                "the training split alone; give a folder with a file for each split, or set "
                "validation_split=null",
                code=Code.SPLIT_NOT_FOUND,
            )
        logger.warning(
            "no validation tasks: {} is {}, which is the training split alone; "
            "a folder with train and test files has both",
            place,
            noun,
        )
        return []

    def _tasks(self, path: str, split: str, *, is_training: bool) -> list[Task]:
        reader, folders = self.config.ajet.task_reader, self.config.base_dirs
        if reader.type == "jsonl_dataset_file":
            key = f"ajet.task_reader.{KEYS[reader.type][0 if is_training else 1]}"
            path = str(existing_file(path, folders, key))
        place = one_split(path, folders)
        rows = read_split(path, split, folders) if place is None else read_place(place)
        tasks = self.tasks_from_rows(
            rows,
            is_training=is_training,
            split=split,
            source=path,
            folder=folder_of(path, split, folders),
        )
        learns, query = self.config.learns_from_rows(is_training=is_training), reader.query_field
        of_replies = unread_chat_fields
        if self.config.ajet.kind == "preference":
            of_replies = unread_preference_fields
        for row in rows:
            self.unread_columns |= of_replies(row) if learns else unread_fields(row, query)
        return tasks
