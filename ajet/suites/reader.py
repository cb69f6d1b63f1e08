"""Reads the tasks of the suite that the section `suite:` names, as a run's held-out tasks."""

from __future__ import annotations

from pathlib import Path

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task
from ajet.suites.registry import find_suite
from ajet.suites.suite import SuiteSection


class SuiteReader(BaseTaskReader):
    def get_training_tasks(self) -> list[Task]:
        raise ConfigError(
            "suite: its tasks are for measuring; train on other data",
            code=Code.SUITE_IS_FOR_MEASURING,
        )

    def get_validation_tasks(self) -> list[Task]:
        section = SuiteSection.from_config(self.config)
        folder = None if section.data is None else Path(section.data)
        if folder is not None and not folder.is_dir():
            raise ConfigError(f"suite.data: {folder}: no such folder", code=Code.DATA_NOT_FOUND)
        return find_suite(section.name).read_tasks(folder)
