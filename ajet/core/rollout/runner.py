"""Runs episodes: tasks in, groups of trajectories out.

    task x num_repeat --> workflow (agent + tools) --> output --> judge --> Trajectory
                              |  ^
                           recorder --> endpoint

Whatever user code does, an episode ends as a value with a status; only the run's own limits
(`max_failure_rate`) or ``debug=True`` let an error out. Groups and their members come back in the
order of the tasks, whichever ended first.

Not covered: an `async def execute` that blocks the event loop (``time.sleep``, ``requests.get``)
holds up all episodes and can't be interrupted; await instead, or write a plain `def execute`, which
runs in a thread.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.core.errors import AjetError, ConfigError
from ajet.core.inference.endpoint import ChatEndpoint, ModelEndpoint, SamplingParams
from ajet.core.judge.judge import BaseJudge
from ajet.core.rollout.attempt import Attempt
from ajet.core.rollout.early_stop import EarlyStop
from ajet.core.rollout.failure import (
    RETRIED,
    EnvironmentFault,
    apply_policy,
    check_failure_rate,
    has_failed,
    one_line,
)
from ajet.core.rollout.garbage import collected_seldom
from ajet.core.rollout.judging import Judging
from ajet.core.rollout.limits import FailurePolicy, RolloutLimits
from ajet.core.rollout.plans import STOPPED, never_started, plans_of, world_of
from ajet.core.rollout.schedule import Schedule, Slot
from ajet.core.rollout.scoring import JudgeFault
from ajet.core.task.task import Task
from ajet.core.trajectory.base_recorder import BaseRecorder
from ajet.core.trajectory.chat_recorder import ChatRecorder
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.workflow.workflow import Mode, Workflow, WorkflowOutput, WorkflowTask

if TYPE_CHECKING:
    from ajet.core.environment.host import EnvServiceHost
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.tool_parsers.parser import ToolParser
    from ajet.core.workflow.gateway.gateway import Gateway

OnEpisode = Callable[[Trajectory], None]
OnError = Callable[[BaseException], None]


class EpisodeRunner:
    """Runs workflows against one endpoint. `workflow` makes a fresh object for each episode.

    A chat endpoint needs neither template nor parser, and is evaluated only."""

    def __init__(
        self,
        *,
        endpoint: ModelEndpoint | ChatEndpoint,
        template: ChatTemplate | None = None,
        parser: ToolParser | None = None,
        workflow: Callable[[Task], Workflow],
        judge: BaseJudge | None,
        limits: RolloutLimits,
        sampling: SamplingParams,
        run_seed: int,
        gateway: Gateway | None = None,
        config: Any = None,
        debug: bool = False,
        environments: EnvServiceHost | None = None,
        on_error: OnError | None = None,
        is_part: bool = False,
    ) -> None:
        """`debug` lets exceptions of the workflow and the judge through unchanged, and drops the
        deadline: a person may be standing at a breakpoint. `environments` gives each task of its
        kind an instance, until the episode is judged. `on_error` is told of exceptions where they
        become a status. `is_part`: others run the rest of a step, so that nobody is trained here
        says nothing."""
        self._endpoint = endpoint
        self._template = template
        self._parser = parser
        self._workflow = workflow
        self._judge = judge
        self._limits = replace(limits, episode_timeout_s=None) if debug else limits
        self._sampling = sampling
        self._run_seed = run_seed
        self._gateway = gateway
        self._config = config
        self._debug = debug
        self._environments = environments
        self._on_error = on_error or _ignore
        self._has_trained = is_part
        self._schedules: set[Schedule[WorkflowTask, Trajectory]] = set()

    async def rollout(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        mode: Mode,
        num_repeat: int,
        redundancy: int = 0,
        numbers: Sequence[int] | None = None,
        failure_rate_of: int | None = None,
        on_episode: OnEpisode | None = None,
        sampling: SamplingParams | None = None,
        finished: Mapping[str, Trajectory] | None = None,
    ) -> list[Group]:
        """`num_repeat` episodes of each task. `on_episode` is called as each one ends. The failure
        policy is applied to groups of training; an evaluation shows what happened. `sampling`
        replaces the runner's.

        With `redundancy` so many more begin, and a group ends with `num_repeat` of them (see
        early_stop.py). `numbers` are the groups' places in the step, where it has several rollouts;
        `max_failure_rate` is then that of `failure_rate_of` episodes, not of this rollout's.
        `finished` are episodes, by the id they were planned with, that a rollout which was lost
        had brought to their end: they are not run again, nor reported."""
        if mode == "train" and isinstance(self._endpoint, ChatEndpoint):
            raise ConfigError("a chat endpoint shows no token ids: evaluate it, it cannot train")
        size = num_repeat + redundancy
        plans = plans_of(
            tasks, numbers or range(len(tasks)), self._run_seed, step=step, mode=mode, size=size
        )
        judging = Judging(self._judge, self._limits, size)
        early_stop = EarlyStop(plans, num_repeat, on_stopped=judging.leave_out)
        failed: list[Trajectory] = []

        async def run(plan: WorkflowTask, slot: Slot) -> Trajectory:
            if finished and (kept := finished.get(plan.episode_id)) is not None:
                if self._comes_to_count(kept):
                    early_stop.ended(plan)
                judging.leave_out(plan)
                return kept
            async with AsyncExitStack() as held:
                trajectory = await self._attempts(plan, slot, sampling or self._sampling, held)
                if self._comes_to_count(trajectory):
                    early_stop.ended(plan)
                slot.free()
                trajectory = early_stop.told(await self._judged(trajectory, judging))
            if on_episode is not None:
                on_episode(trajectory)
            if has_failed(trajectory):
                failed.append(trajectory)
                check_failure_rate(
                    failed, failure_rate_of or len(plans), self._limits.max_failure_rate
                )
            return trajectory

        schedule = Schedule(
            plans, limit=self._limits.max_env_worker, endpoint=self._endpoint, run=run
        )
        with collected_seldom(), early_stop.watching(schedule), self._running(schedule):
            results = await schedule.run()
        members = [
            early_stop.told(never_started(plan)) if trajectory is None else trajectory
            for plan, trajectory in zip(plans, results, strict=True)
        ]
        if mode == "train" and not self._has_trained:
            self._has_trained = somebody_is_trained(members)
        groups = [
            Group(plans[at].group_id, tuple(members[at : at + size]), tasks[at // size])
            for at in range(0, len(plans), size)
        ]
        if mode != "train":
            return groups
        return [early_stop.kept(apply_policy(group, self._policy)) for group in groups]

    async def run_again(self, plan: WorkflowTask) -> Trajectory:
        """One episode as it was planned before, judged: no retries, no failure policy. A judge of
        groups sees it alone."""
        judging = Judging(self._judge, self._limits, num_repeat=1)
        async with AsyncExitStack() as held:
            trajectory = await self._attempt(plan, self._sampling, 0, held)
            return await self._judged(trajectory, judging)

    def stop(self) -> None:
        """End the rollouts in progress: they return, unfinished episodes are `aborted`."""
        for schedule in self._schedules:
            schedule.stop()

    @contextmanager
    def _running(self, schedule: Schedule[WorkflowTask, Trajectory]) -> Iterator[None]:
        self._schedules.add(schedule)
        try:
            yield
        finally:
            self._schedules.remove(schedule)

    @property
    def _policy(self) -> FailurePolicy:
        return self._limits.failure_policy

    def _comes_to_count(self, trajectory: Trajectory) -> bool:
        """Whether the episode will be valid, if the judge does not fail."""
        if trajectory.status is EpisodeStatus.ABORTED:
            return False
        return self._policy == "zero" or not has_failed(trajectory)

    async def _attempts(
        self, plan: WorkflowTask, slot: Slot, sampling: SamplingParams, held: AsyncExitStack
    ) -> Trajectory:
        """The episode; with the policy ``retry`` again, while it fails, with seeds of its own."""
        retries = self._limits.max_retries if self._policy == "retry" else 0
        trajectory = await self._attempt(plan, sampling, 0, held)
        failed: list[Trajectory] = []
        while trajectory.status in RETRIED and len(failed) < retries:
            failed.append(trajectory)
            await held.aclose()
            again = replace(plan, episode_id=f"{plan.episode_id}-r{len(failed)}")
            slot.renew(again.episode_id)
            trajectory = await self._attempt(again, sampling, len(failed), held)
        return replace(trajectory, earlier_attempts=tuple(failed))

    async def _attempt(
        self, plan: WorkflowTask, sampling: SamplingParams, number: int, held: AsyncExitStack
    ) -> Trajectory:
        try:
            workflow = self._workflow(plan.task)
        except AjetError:
            raise  # no workflow for this task: the config's mistake, not the episode's
        except Exception as error:
            if self._debug:
                raise
            self._on_error(error)
            return Trajectory(plan, (), EpisodeStatus.AGENT_ERROR, error=one_line(error))
        recorder = self._recorder(plan, sampling, number, workflow)
        environment = self._environments and self._environments.episode(plan)
        if environment is not None:
            await held.enter_async_context(environment)
        attempt = Attempt(
            workflow,
            plan,
            recorder,
            limits=self._limits,
            gateway=self._gateway,
            config=self._config,
            debug=self._debug,
            environment=environment,
            on_error=self._on_error,
        )
        return await attempt.run()

    def _recorder(
        self, plan: WorkflowTask, sampling: SamplingParams, number: int, workflow: Workflow
    ) -> BaseRecorder:
        group = plan.task_batch_index
        place = (*world_of(plan.mode, plan.step), group, plan.rollout_index, number)
        episode: dict[str, Any] = {
            "limits": self._limits,
            "sampling": sampling,
            "episode_id": plan.episode_id,
            "seed_path": (self._run_seed, "rollout", *place),
            "trainable_targets": workflow.trainable_targets,
        }
        if isinstance(self._endpoint, ChatEndpoint):
            return ChatRecorder(self._endpoint, **episode)
        assert self._template is not None and self._parser is not None
        return EpisodeRecorder(
            endpoint=self._endpoint,
            template=self._template,
            parser=self._parser,
            check_drift=plan.mode == "train" and self._limits.checks_drift(plan.rollout_index),
            **episode,
        )

    async def _judged(self, trajectory: Trajectory, judging: Judging) -> Trajectory:
        output = trajectory.output
        if output is None:
            judging.leave_out(trajectory.workflow_task)
            return trajectory
        if trajectory.is_malformed:
            judging.leave_out(trajectory.workflow_task)
            reward = self._limits.malformed.reward
            breakdown = {"malformed": reward}
            return replace(trajectory, reward=reward, is_success=False, reward_breakdown=breakdown)
        if self._judge is None and trajectory.status is EpisodeStatus.TRUNCATED:
            output = _nothing_if_unrewarded(output)
        source = "judge" if output.reward is None else "workflow"
        started_s = time.perf_counter()
        try:
            judged = await judging.verdict(trajectory.workflow_task, output)
        except JudgeFault as fault:
            if self._debug:
                raise fault.__cause__ or fault from None
            self._on_error(fault.__cause__ or fault)
            is_environments = isinstance(fault.__cause__, EnvironmentFault)
            status = EpisodeStatus.ENV_ERROR if is_environments else EpisodeStatus.JUDGE_ERROR
            return replace(trajectory, status=status, error=str(fault))
        except asyncio.CancelledError:
            return replace(trajectory, status=EpisodeStatus.ABORTED, error=STOPPED)
        return replace(
            trajectory,
            output=judged.output,
            reward=judged.reward,
            is_success=judged.is_success,
            reward_breakdown={source: judged.reward},
            timings=trajectory.timings | {"judge_s": time.perf_counter() - started_s},
        )


def _ignore(_error: BaseException) -> None:
    """Its status says enough."""


def somebody_is_trained(trajectories: Sequence[Trajectory]) -> bool:
    """A ConfigError where agents call the model and none is trained; later steps may do by chance
    what would be a mistake in the first."""
    turns = [turn for t in trajectories for turn in t.turns]
    if turns and not any(turn.trainable for turn in turns):
        names = sorted({turn.agent_name for turn in turns} | {turn.target_tag for turn in turns})
        raise ConfigError(
            "the workflow's trainable_targets match none of its agents: "
            f"the agent names and target tags in use are {', '.join(names)}"
        )
    return bool(turns)


def _nothing_if_unrewarded(output: WorkflowOutput) -> WorkflowOutput:
    """A workflow that rewards itself but was cut before it could has earned nothing."""
    if output.reward is None:
        output = copy.copy(output)
        output.reward, output.is_success = 0.0, False
    return output
