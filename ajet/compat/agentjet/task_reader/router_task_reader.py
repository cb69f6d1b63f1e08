"""Provides AgentJet's `RouterTaskReader` and `HuggingFaceTaskReader`: a swarm client's tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task


class RouterTaskReader:
    """Reads tasks as the YAML section `ajet.task_reader` would."""

    def __init__(self, reader_type: str, reader_config: Any) -> None:
        repository, files = reader_config.huggingface_dat_repo, reader_config.jsonl_dataset_file
        path = (repository.dataset_path, repository.dataset_name)
        section: dict[str, Any] = {"type": reader_type}
        if reader_type == "huggingface_dat_repo":
            section[reader_type] = {
                "dataset_path": "/".join(filter(None, path)) or None,
                "training_split": repository.training_split,
                "validation_split": repository.validation_split,
            }
        elif reader_type == "jsonl_dataset_file":
            section[reader_type] = {
                "training": {"file_path": files.training.file_path},
                "validation": {"file_path": files.validation.file_path},
            }
        self._reader = make_reader(AjetConfig.model_validate({"ajet": {"task_reader": section}}))

    def generate_training_tasks(self) -> Iterator[Task]:
        yield from self._reader.get_training_tasks()

    def generate_validation_tasks(self) -> Iterator[Task]:
        yield from self._reader.get_validation_tasks()

    get_training_tasks, get_validation_tasks = generate_training_tasks, generate_validation_tasks


class HuggingFaceTaskReader(RouterTaskReader):
    """Reads the tasks of a data set of the Hub, of a folder or of a file."""

    def __init__(self, reader_config: Any) -> None:
        super().__init__("huggingface_dat_repo", reader_config)
