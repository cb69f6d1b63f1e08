"""The reader `env_service` reads the tasks that an environment over HTTP lists. The question comes
when an episode begins: the instance's first observation (host.py)."""

from __future__ import annotations

from loguru import logger

from ajet.core.errors import DataError, EnvironmentFault, KeyMissing
from ajet.core.errors.codes import Code
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.task.reader import BaseTaskReader, first_duplicate_ids
from ajet.core.task.task import Task
from ajet.environments.env_service.host import SECTION, environment_host


class EnvServiceReader(BaseTaskReader):
    def get_training_tasks(self) -> list[Task]:
        split = self.config.ajet.task_reader.env_service.training_split
        tasks = self._list(split)
        if not tasks:
            raise DataError(
                f"{SECTION}.training_split: the service has no task in {split!r}",
                code=Code.ENVIRONMENT_SERVICE,
            )
        return tasks

    def get_validation_tasks(self) -> list[Task]:
        split = self.config.ajet.task_reader.env_service.validation_split
        if split is None:
            return []
        tasks = self._list(split)
        if not tasks:
            logger.warning("no validation tasks: the service has none in the split {!r}", split)
        return tasks

    def _list(self, split: str) -> list[Task]:
        host = environment_host(self.config.ajet.task_reader)
        if host is None:
            raise KeyMissing(
                "ajet.task_reader: the reader of an env service has no service: write type: "
                "env_service and its env_url"
            )

        async def task_ids() -> list[str]:
            async with host.client() as client:
                return await client.task_ids(split)

        try:
            names = run_bounded(task_ids())
        except EnvironmentFault as fault:
            raise DataError(f"{SECTION}.env_url: {fault}", code=Code.ENVIRONMENT_SERVICE) from fault
        tasks = [Task(name, "", env_type=host.env_type) for name in names]
        if duplicates := first_duplicate_ids(tasks):
            name = tasks[duplicates[0] - 1].task_id
            raise DataError(
                f"{host.url}: the split {split!r} lists the task {name!r} twice",
                code=Code.ENVIRONMENT_SERVICE,
            )
        return tasks
