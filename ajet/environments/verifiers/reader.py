"""Reads the tasks of an environment of verifiers. One with endless tasks needs `num_tasks`.

TaskData(idx=3, prompt="2+2?", …)  ->  Task("3", main_query="2+2?", metadata={"verifiers": {…}})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ajet.core.errors import DataError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task
from ajet.environments.verifiers.process import VerifiersProcess, VerifiersSection

KEY = "verifiers"


class VerifiersReader(BaseTaskReader):
    """Returns the environment's tasks. Held out are the last `num_validation_tasks`, or those of
    `validation_env`."""

    def get_training_tasks(self) -> list[Task]:
        section = VerifiersSection.from_config(self.config)
        rows = _rows(section, section.env)
        num_training = len(rows) - section.num_validation_tasks
        if num_training < 1:
            raise DataError(
                f"verifiers: {len(rows)} tasks, and {section.num_validation_tasks} are held out "
                "(verifiers.num_validation_tasks): none remain to train on",
                code=Code.NO_TASK,
            )
        return [_task(row, "train") for row in rows[:num_training]]

    def get_validation_tasks(self) -> list[Task]:
        section = VerifiersSection.from_config(self.config)
        if section.validation_env is not None:
            rows = _rows(section, environment_of(section, "validation"))
            return [_task(row, "validation") for row in rows]
        if section.num_validation_tasks == 0:
            return []
        rows = _rows(section, section.env)
        return [_task(row, "validation") for row in rows[-section.num_validation_tasks :]]


def environment_of(section: VerifiersSection, split: str) -> Mapping[str, Any]:
    """Returns the config of the environment that plays a task of this split."""
    if split != "validation" or section.validation_env is None:
        return section.env
    return _merged(section.env, section.validation_env)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        base_value = merged.get(name)
        both = isinstance(base_value, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(base_value, value) if both else value  # type: ignore[arg-type]
    return merged


def _rows(section: VerifiersSection, env: Mapping[str, Any]) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        process = await VerifiersProcess.start(section, env)
        try:
            return await process.ask("tasks", limit=section.num_tasks)
        finally:
            await process.close()

    try:
        return run_bounded(ask())
    except EnvironmentFault as fault:
        raise DataError(str(fault), code=Code.ENVIRONMENT_FAILS) from fault


def _task(row: dict[str, Any], split: str) -> Task:
    name = row.get("id") or row.get("name") or row["idx"]
    # The prompt as text is for display only; the environment uses the row.
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
    if prompt is None:
        prompt = str(row.get("name") or row["idx"])
    query = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return Task(f"{row['idx']}-{name}", query, metadata={KEY: row, "split": split})
