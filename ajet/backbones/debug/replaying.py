"""Runs one recorded episode again in this process, for `ajet inspect replay`. The recorded
completions replace the model, so no weights are loaded. Nothing is written.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import get_args

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.core.config import AjetConfig
from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.judge import make_judge
from ajet.core.judge.judge import GroupJudge
from ajet.core.process.bounded_loop import GRACE_S, run_bounded
from ajet.core.rollout.attempt import OnError
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.trajectory.limits import Limit
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.engines.replay import RecordedCall, ReplayEngine
from ajet.read.episode_reader import EpisodeRecord
from ajet.read.recorded_run import RecordedRun
from ajet.read.reports.replay_report import ReplayReport

TIMED = (EpisodeStatus.TIMEOUT, EpisodeStatus.JUDGE_ERROR)
"""Outcomes that a deadline may have caused."""


def replay_episode(
    run: RecordedRun,
    record: EpisodeRecord,
    config: AjetConfig,
    *,
    stop_at_departure: bool = False,
    on_error: OnError | None = None,
    before: Callable[[type], None] | None = None,
) -> ReplayReport:
    """Runs the episode again. `on_error` receives an error of the workflow or the judge, `before`
    the workflow's class just before the episode starts."""
    config = with_render_dir(config, None)  # does not overwrite the run's own frames
    plan = recorded_plan(record, config)
    engine = ReplayEngine(
        [RecordedCall(turn.completion, turn.started_s, turn.ended_s) for turn in record.turns],
        stops_at_departure=stop_at_departure,
        overflow=_overflow(record),
    )
    limits = replace(RolloutLimits.from_config(config), failure_policy="mask")  # no retries
    if record.outcome not in TIMED:  # the user may be at a breakpoint
        limits = replace(limits, episode_timeout_s=None)
    workflows, judge = assembly.load_workflows(config), make_judge(config)
    with closing(assembly.make_gateway(config)) as gateway:
        runner = assembly.make_runner(
            config,
            engine,
            run.template,
            judge=judge,
            gateway=gateway,
            limits=limits,
            workflows=workflows,
            on_error=lambda error: None if engine.stopped or on_error is None else on_error(error),
        )
        if before is not None:
            before(workflows.class_for(plan.task))
        trajectory = run_bounded(_run(runner, plan, engine))
    return ReplayReport(record, trajectory, engine, run.template, isinstance(judge, GroupJudge))


async def _run(runner: GroupRunner, plan: WorkflowTask, engine: ReplayEngine) -> Trajectory:
    """Runs the episode. Once the record is used up its workflow has GRACE_S to return: one that
    retries after every error would never do so."""
    episode = asyncio.create_task(runner.rerun(plan))
    over = asyncio.create_task(engine.ended.wait())
    await asyncio.wait({episode, over}, return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    _, late = await asyncio.wait({episode}, timeout=GRACE_S)
    for task in late:
        task.cancel()
    return await episode


def _overflow(record: EpisodeRecord) -> str | None:
    """Returns the engine's error for a prompt that was too long for it, or None. The other limits
    are applied again in the replay. An old record does not say which limit it was: then it may have
    been the engine's."""
    if record.truncation is None or record.truncation.limit not in (Limit.ENGINE, Limit.UNKNOWN):
        return None
    return record.truncation.detail


def recorded_plan(record: EpisodeRecord, config: AjetConfig) -> WorkflowTask:
    """Rebuilds the plan with which the recorded episode was run."""
    row = record.row
    return WorkflowTask(
        copy.deepcopy(record.task or _read_again(row.task_id, row.mode, config)),
        row.episode_id,
        row.group_id,
        row.rollout_index,
        row.step,
        next(mode for mode in get_args(Mode) if mode == row.mode),
        record.seed,
    )


def _read_again(task_id: str, mode: str, config: AjetConfig) -> Task:
    """Reads a task that could not be recorded as JSON from the data as they are today."""
    reader = make_reader(config)
    tasks = reader.get_validation_tasks() if mode == "eval" else reader.get_training_tasks()
    task = next((task for task in tasks if task.task_id == task_id), None)
    if task is None:
        raise DataError(
            f"task {task_id} could not be recorded as JSON, and {config.ajet.task_reader.type} no "
            f"longer has a {mode} task with this id",
            code=Code.RUN_NOT_REBUILT,
        )
    return task
