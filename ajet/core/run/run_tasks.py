"""The tasks of one run: those it trains on and those it is measured on.

reader ─┬─ training ── cursor ─> the next batch           total_steps = how often
        └─ held_out ─> validation
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ajet.core.config import AjetConfig
from ajet.core.errors import KeysConflict
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.task.adaptive import AdaptiveSampler, AdaptiveSettings
from ajet.core.task.cursor import DataCursor
from ajet.core.task.jsonl import resolve
from ajet.core.task.own_sampler import OwnSampler, load_own_sampler
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.task.results import read_results
from ajet.core.task.task import Task
from ajet.core.workflow.registry import WorkflowFactory


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Holds the tasks of a run. `cursor` moves during the run; a checkpoint stores its state.
    `held_out` is the sample of `num_held_out_available` tasks that the run is measured on.
    `workflows` makes the workflow of each task."""

    training: list[Task]
    held_out: list[Task]
    cursor: DataCursor | ResultCursor
    total_steps: int
    num_held_out_available: int
    workflows: WorkflowFactory

    @classmethod
    def of(
        cls,
        config: AjetConfig,
        workflows: WorkflowFactory,
        training: list[Task],
        held_out: list[Task],
        num_available: int,
    ) -> RunTasks:
        """Returns the tasks with a cursor at the beginning and the number of steps."""
        cursor = make_cursor(config, training)
        total_steps = BatchPlan(config, len(training), len(held_out)).total_steps
        return cls(training, held_out, cursor, total_steps, num_available, workflows)

    def from_the_beginning(self, config: AjetConfig) -> RunTasks:
        """Returns the same tasks with a cursor that has not moved, for another attempt."""
        return replace(self, cursor=make_cursor(config, self.training))


def make_cursor(config: AjetConfig, tasks: list[Task]) -> DataCursor | ResultCursor:
    """Makes the cursor that `ajet.data.sampler` names: a fixed order, or one that sees results."""
    data, seed = config.ajet.data, config.ajet.seed
    if data.sampler == "uniform":
        return DataCursor(len(tasks), data.train_batch_size, seed=seed, shuffle=data.shuffle)
    if data.sampler == "adaptive":
        sampler = AdaptiveSampler(tasks, AdaptiveSettings.from_config(config))
    else:
        sampler = load_own_sampler(config, tasks)
    if isinstance(sampler, OwnSampler):  # an order for each epoch, without results
        return DataCursor(
            len(tasks), data.train_batch_size, seed=seed, shuffle=data.shuffle, own_order=sampler
        )
    if config.ajet.task_reader.type == "environment":
        raise KeysConflict(
            f"ajet.data.sampler={data.sampler}: environments (task_reader environment) differ at "
            "each step, so results say nothing about the next one; use uniform"
        )
    path = data.curriculum.results_path
    start = () if path is None else read_results(resolve(path, config.base_dirs), tasks)
    return ResultCursor(len(tasks), data.train_batch_size, seed=seed, sampler=sampler, start=start)
