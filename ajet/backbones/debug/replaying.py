"""One recorded episode again in this process: what `ajet replay` does.

    run folder ──> task, seed, completions ──> the user's workflow, tools and judge ──> departures

The completions stand in the place of the model, so no weights are loaded. Nothing is written. There
is no deadline (somebody may be standing at a breakpoint), unless the deadline ended the episode; a
workflow that goes on after the record has ended gets `GRACE_S`. A judge of groups is asked of this
episode alone, so its reward is not compared.

Not covered: what the record does not hold: the environment's variables, the state of services that
the tools ask, and calls that got no answer.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from ajet import assembly
from ajet.agents.frame_recorder import with_render_dir
from ajet.core.bounded_loop import GRACE_S, run_bounded
from ajet.core.config import AjetConfig
from ajet.core.errors import DataError
from ajet.core.inference.engines.replay import RecordedCall, ReplayEngine
from ajet.core.judge import make_judge
from ajet.core.judge.judge import GroupJudge
from ajet.core.record.episode_reader import EpisodeRecord
from ajet.core.record.recorded_run import RecordedRun
from ajet.core.rollout.episode import OnError
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.task.reader import make_reader
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.trajectory.limits import is_own_limit
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.workflow.registry import WorkflowFactory
from ajet.reports.replay_report import ReplayReport

TIMED = (EpisodeStatus.TIMEOUT, EpisodeStatus.JUDGE_ERROR)
"""A deadline may have ended these."""


def replay_episode(
    run: RecordedRun,
    record: EpisodeRecord,
    config: AjetConfig,
    *,
    stop_at_departure: bool = False,
    on_error: OnError | None = None,
    before: Callable[[type], None] | None = None,
) -> ReplayReport:
    """Run the episode again. `on_error` is told what the workflow or the judge raised; `before` is
    given the workflow's class, at the last moment."""
    config = with_render_dir(config, None)  # the run's own pictures stay
    plan = planned(record, config)
    engine = ReplayEngine(
        [RecordedCall(turn.completion, turn.started_s, turn.ended_s) for turn in record.turns],
        stops_at_departure=stop_at_departure,
        overflow=_overflow(record),
    )
    judge = make_judge(config)
    gateway = assembly.make_gateway(config)
    runner = assembly.make_runner(
        config,
        engine,
        run.template,
        judge=judge,
        mode=plan.mode,
        gateway=gateway,
        limits=_limits(config, record),
        on_error=lambda error: None if engine.stopped or on_error is None else on_error(error),
    )
    if before is not None:
        before(WorkflowFactory.from_config(config).class_for(plan.task))
    try:
        trajectory = run_bounded(_run(runner, plan, engine))
    finally:
        gateway.close()
    return ReplayReport(record, trajectory, engine, run.template, isinstance(judge, GroupJudge))


async def _run(runner: GroupRunner, plan: WorkflowTask, engine: ReplayEngine) -> Trajectory:
    """The episode. Once the replay is over its workflow has GRACE_S to end: one that tries again
    whatever is raised never would."""
    episode = asyncio.create_task(runner.rerun(plan))
    over = asyncio.create_task(engine.ended.wait())
    await asyncio.wait({episode, over}, return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    _, late = await asyncio.wait({episode}, timeout=GRACE_S)
    for task in late:
        task.cancel()
    return await episode


def _overflow(record: EpisodeRecord) -> str | None:
    """What the engine said of a prompt that was too long for it. The episode's own limits refuse
    again by themselves; the record of a dropped group does not tell which it was."""
    row = record.row
    is_cut = row.status == record.ended_as == EpisodeStatus.TRUNCATED
    return row.error if is_cut and row.error and not is_own_limit(row.error) else None


def planned(record: EpisodeRecord, config: AjetConfig) -> WorkflowTask:
    """The episode as the runner planned it."""
    row = record.row
    return WorkflowTask(
        copy.deepcopy(record.task or _read_again(row.task_id, row.mode, config)),
        row.episode_id,
        row.group_id,
        row.rollout_index,
        row.step,
        _mode(row.mode),
        record.seed,
    )


def _mode(recorded: str) -> Mode:
    return next(mode for mode in get_args(Mode) if mode == recorded)


def _read_again(task_id: str, mode: str, config: AjetConfig) -> Task:
    """A task that JSON could not hold, from the data as it is now."""
    reader = make_reader(config)
    tasks = reader.get_validation_tasks() if mode == "eval" else reader.get_training_tasks()
    found = next((task for task in tasks if task.task_id == task_id), None)
    if found is None:
        raise DataError(
            f"task {task_id} could not be recorded whole, and the {mode} tasks of "
            f"{config.ajet.task_reader.type} have none of that id now"
        )
    return found


def _limits(config: AjetConfig, record: EpisodeRecord) -> RolloutLimits:
    limits = replace(RolloutLimits.from_config(config), failure_policy="mask")  # no retries
    return limits if record.ended_as in TIMED else replace(limits, episode_timeout_s=None)
