"""Rolls out some of a run's tasks in this process, for `ajet plan --try`."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.backbones.evaluating import LoadedSubject, Subject, load_subject
from ajet.core.config import AjetConfig
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.judge import make_judge
from ajet.core.judge.judge import BaseJudge
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.rollout.request import RolloutRequest
from ajet.core.run.batch_plan import BatchPlan
from ajet.core.task.task import Task
from ajet.core.trajectory.samples import to_samples
from ajet.core.workflow.registry import WorkflowFactory
from ajet.plan.one_machine import Trial


def try_rollout(config: AjetConfig, tasks: list[Task]) -> Trial:
    """Rolls out as many training tasks as the run has at a time. Raises DataError if no episode can
    be trained."""
    config = with_render_dir(config, None)  # keeps no pictures of environments
    repeat = config.ajet.rollout.num_repeat
    at_once = min(config.ajet.rollout.max_env_worker, BatchPlan(config, 0, 0).episodes_per_step)
    some = tasks[: max(1, at_once // repeat)]
    # Errors of the workflow and the judge are raised before a model is loaded.
    played = [] if config.learns_from_rows(is_training=True) else tasks
    workflows, judge = assembly.load_workflows(config, played), make_judge(config)
    return run_bounded(_try(config, some, workflows, judge, load_subject(config, Subject())))


async def _try(
    config: AjetConfig,
    tasks: list[Task],
    workflows: WorkflowFactory,
    judge: BaseJudge | None,
    served: LoadedSubject,
) -> Trial:
    gateway = assembly.make_gateway(config)
    repeat = config.ajet.rollout.num_repeat
    try:
        runner = assembly.make_runner(
            config,
            served.engine,
            served.template,
            judge=judge,
            gateway=gateway,
            workflows=workflows,
        )
        # A process's first episodes import what their agent needs: they are not measured.
        await runner.rollout(RolloutRequest(tasks[-1:], 0, "train", repeat))
        started_s = time.perf_counter()
        groups = await runner.rollout(RolloutRequest(tasks, 1, "train", repeat))
        seconds = time.perf_counter() - started_s
    finally:
        gateway.close()
        await served.engine.close()
    # A gradient for all sampled tokens; the advantages' values do not matter to a plan.
    samples = [
        [replace(s, advantages=s.loss_mask.astype(np.float32)) for s in to_samples([group])]
        for group in groups
    ]
    trained = [group for group in samples if group]
    if not trained:
        raise DataError(
            f"--try: none of {len(tasks) * repeat} episodes can be trained; `ajet debug` shows one",
            code=Code.TOO_MANY_FAILURES,
        )
    is_given = config.learns_from_rows(is_training=True)
    return Trial(trained, len(tasks) * repeat, None if is_given else seconds)
