"""Runs one episode, from its plan to a judged trajectory.

plan -> workflow.execute(task, model) -> WorkflowOutput -> judge -> Trajectory
                   |  ^
                recorder -> endpoint
"""

from __future__ import annotations

import asyncio
import copy
import functools
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger

from ajet.core.config.rollout import Decoding
from ajet.core.errors import AjetError, ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import ChatEndpoint, ModelEndpoint, SamplingParams
from ajet.core.judge.judge import BaseJudge
from ajet.core.judge.verdict import (
    JudgeFault,
    Verdict,
    require_agent_rewards,
    require_rewards,
    verdict,
)
from ajet.core.rollout.admission import Slot
from ajet.core.rollout.answered import ContinuedEndpoint
from ajet.core.rollout.attempt import STOPPED, Attempt, OnError, TaskEnvironment
from ajet.core.rollout.failure import RETRIED
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import copy_of, seed_path_of_step
from ajet.core.rollout.stops import Stop
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import Mode, WorkflowTask
from ajet.core.text.error_text import one_line
from ajet.core.text.redaction import redact
from ajet.core.trajectory.adapter_choice import AdapterChoice
from ajet.core.trajectory.base_recorder import BaseRecorder, CallObserver
from ajet.core.trajectory.chat_recorder import ChatRecorder
from ajet.core.trajectory.hint import hint_for
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import Activity, CurrentCall, in_call
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.tool_parser import ToolParser
    from ajet.core.workflow.gateway.gateway import Gateway

RELEASE_S = 60.0
"""The seconds that a workflow's `after_verdict` may take."""
GROUP_JUDGE = "the judge of its group"
JudgeInGroup = Callable[[Trajectory], Awaitable[Trajectory]]
"""Returns the trajectory with its verdict once the other members of its group have ended."""


class EpisodeExecutor(Protocol):
    """Runs single episodes, in this process (`EpisodeRunner`) or in others (ajet/cluster)."""

    async def run(
        self,
        plan: WorkflowTask,
        slot: Slot,
        judge_in_group: JudgeInGroup | None = None,
    ) -> Trajectory:
        """Runs the episode to its end and judges it; failures of user code become its status.
        `slot` is notified when the workflow is over. `judge_in_group` is called if the judge
        compares whole groups."""
        ...

    def calls(self) -> Mapping[str, CurrentCall]:
        """Returns what each running episode does now, by the id of its attempt."""
        ...

    def stop(self, episode_id: str, stop: Stop) -> bool:
        """Ends a running attempt at an episode; returns False if there is none of this id."""
        ...

    def set_stops(self, stops: Mapping[str, Stop]) -> None:
        """Sets the stops that an earlier attempt of the run decided; they apply again."""
        ...


class EnvironmentHost(Protocol):
    """Provides environments for the tasks that need one (environments/env_service/host.py)."""

    def episode(self, workflow_task: WorkflowTask) -> TaskEnvironment | None:
        """Returns the environment of an episode that has not started; None if it needs none."""
        ...


@dataclass(frozen=True, slots=True)
class EpisodeParts:
    """Holds what differs between the modes: the factory of workflows, the judge (None: workflows
    reward themselves), and the sampling."""

    workflow: Callable[[Task], Workflow]
    judge: BaseJudge | None
    sampling: SamplingParams


class EpisodeRunner:
    """Runs episodes of every mode in this process, against one endpoint.

    A chat endpoint needs neither template nor parser, and can only be evaluated.
    """

    def __init__(
        self,
        *,
        endpoint: ModelEndpoint | ChatEndpoint,
        template: ChatTemplate | None = None,
        parser: ToolParser | None = None,
        parts_for: Callable[[Mode], EpisodeParts],
        limits: RolloutLimits,
        run_seed: int,
        gateway: Gateway | None = None,
        config: Any = None,
        debug: bool = False,
        environments: EnvironmentHost | None = None,
        on_error: OnError | None = None,
        observe: Callable[[WorkflowTask], CallObserver] | None = None,
        adapters: AdapterChoice | None = None,
    ) -> None:
        """Stores what every episode shares, and `parts_for`, which returns what a mode has.

        `debug` raises exceptions of the workflow and the judge unchanged, and drops the deadline,
        because a person may be at a breakpoint. `on_error` is called with each exception that
        becomes a status. `observe` is called as an episode begins, and returns an observer of its
        calls. `adapters` chooses the adapter of each call, where the run has several.
        """
        self.endpoint = None if isinstance(endpoint, ChatEndpoint) else endpoint
        self._chat_endpoint = endpoint if isinstance(endpoint, ChatEndpoint) else None
        self._template = template
        self._parser = parser
        self.parts_for = functools.cache(parts_for)
        self.limits = replace(limits, episode_timeout_s=None) if debug else limits
        self.run_seed = run_seed
        self._gateway = gateway
        self._config = config
        self.debug = debug
        self._environments = environments
        self.on_error: OnError = on_error or (lambda error: None)
        self._observe = observe
        self._adapters = adapters
        self._running: dict[str, Attempt] = {}
        self._blocking: set[type[Workflow]] = set()
        self._stops: Mapping[str, Stop] = {}
        self._judge_slots = asyncio.Semaphore(limits.max_env_worker)

    async def run(
        self,
        plan: WorkflowTask,
        slot: Slot,
        judge_in_group: JudgeInGroup | None = None,
    ) -> Trajectory:
        """Implements `EpisodeExecutor.run`. With the failure policy ``retry`` a failed episode runs
        again with other seeds; the failed attempts are kept in the trajectory."""
        if plan.mode == "train" and self._chat_endpoint is not None:
            raise ConfigError(
                "a chat endpoint shows no token ids: evaluate it, it cannot train",
                code=Code.NO_TOKEN_IDS,
            )
        retries = self.limits.max_retries if self.limits.failure_policy == "retry" else 0
        failed: list[Trajectory] = []
        activity: Activity | None = None
        async with AsyncExitStack() as resources:
            while True:
                # A workflow may append to its task's messages, and another attempt may follow.
                task = copy_of(plan.task)
                attempt = self._attempt(replace(plan, task=task), len(failed), slot, resources)
                if isinstance(attempt, Trajectory):
                    trajectory = attempt
                else:
                    self._add_running(attempt, resources)
                    activity = attempt.activity
                    trajectory = await attempt.run()
                    if attempt.must_run_in_thread:
                        # Not a retry: the same seeds, and no failure is counted.
                        await resources.aclose()
                        continue
                if trajectory.status not in RETRIED or len(failed) == retries:
                    break
                failed.append(trajectory)
                await resources.aclose()  # the next attempt gets a new environment
                first = failed[0].episode_id
                plan = replace(plan, episode_id=f"{first}-r{len(failed)}")
                slot.renew(plan.episode_id)
            slot.workflow_ended(trajectory.outcome)
            trajectory = replace(trajectory, earlier_attempts=tuple(failed))
            judged = await self._judge_output(trajectory, judge_in_group)
            if activity is None:
                return judged
            return replace(judged, began_unix_s=activity.began_unix_s, calls=activity.calls)

    def calls(self) -> Mapping[str, CurrentCall]:
        """Implements `EpisodeExecutor.calls`. Other threads may call it."""
        return {name: attempt.activity.now() for name, attempt in list(self._running.items())}

    def stop(self, episode_id: str, stop: Stop) -> bool:
        """Implements `EpisodeExecutor.stop`. An episode that is being judged is not stopped."""
        attempt = self._running.get(episode_id)
        return attempt is not None and attempt.stop(stop)

    def set_stops(self, stops: Mapping[str, Stop]) -> None:
        """Implements `EpisodeExecutor.set_stops`."""
        self._stops = stops

    def _add_running(self, attempt: Attempt, resources: AsyncExitStack) -> None:
        """Registers the attempt until `resources` are closed after its verdict. It is stopped if it
        was stopped in an earlier attempt of the run."""
        name = attempt.activity.episode_id
        self._running[name] = attempt
        resources.callback(self._running.pop, name, None)
        if (stop := self._stops.get(name)) is not None:
            logger.info(f"{name}: {stop.reason}, in an earlier attempt of the run, and so again")
            attempt.stop(stop)

    def _attempt(
        self, plan: WorkflowTask, number: int, slot: Slot, resources: AsyncExitStack
    ) -> Attempt | Trajectory:
        """Returns an attempt that is ready to run, or the trajectory of an episode whose workflow
        cannot be made. `resources` releases its environment."""
        try:
            workflow = self.parts_for(plan.mode).workflow(plan.task)
            recorder = self._recorder(plan, number, workflow, slot)
        except AjetError:
            raise  # the config's mistake, for example an agent_name that is not registered
        except Exception as error:
            if self.debug:
                raise
            self.on_error(error)
            return Trajectory(plan, (), EpisodeStatus.AGENT_ERROR, failure=one_line(error))
        resources.push_async_callback(self._release, workflow, plan)
        environment = self._environments.episode(plan) if self._environments else None
        if environment is not None:
            resources.push_async_exit(environment)
        return Attempt(
            workflow,
            plan,
            recorder,
            ModelTuner(recorder, config=self._config, gateway=self._gateway),
            limits=self.limits,
            debug=self.debug,
            environment=environment,
            on_error=self.on_error,
            blocking=self._blocking,
        )

    async def _release(self, workflow: Workflow, plan: WorkflowTask) -> None:
        """Calls the workflow's `after_verdict`. The verdict stands, so an exception there, or more
        than `RELEASE_S` seconds, is only logged."""
        try:
            async with asyncio.timeout(RELEASE_S):
                await workflow.after_verdict()
        except (Exception, SystemExit) as error:
            if self.debug:
                raise
            logger.warning(f"{plan.episode_id}: after_verdict failed: {one_line(error)}")

    def _recorder(
        self, plan: WorkflowTask, number: int, workflow: Workflow, slot: Slot
    ) -> BaseRecorder:
        path = (*seed_path_of_step(plan.mode, plan.step), plan.task_batch_index)
        sampling_modes: dict[Decoding, Mode] = {"greedy": "baseline", "sampled": "train"}
        mode = plan.mode if plan.decoding is None else sampling_modes[plan.decoding]
        episode: dict[str, Any] = {
            "limits": self.limits,
            "sampling": self.parts_for(mode).sampling,
            "episode_id": plan.episode_id,
            "seed_path": (self.run_seed, "rollout", *path, plan.rollout_index, number),
            "trainable_targets": workflow.trainable_targets,
            "observer": self._observe(plan) if self._observe is not None else None,
        }
        if self._chat_endpoint is not None:
            return ChatRecorder(self._chat_endpoint, **episode)
        assert self.endpoint is not None and self._template is not None and self._parser is not None
        hint, endpoint = self.limits.hint, self.endpoint
        if slot.on_call is not None and not number:  # calls of a retry are not stored
            endpoint = ContinuedEndpoint(endpoint, slot.answered, slot.on_call)
        return EpisodeRecorder(
            endpoint=endpoint,
            template=self._template,
            parser=self._parser,
            check_drift=plan.mode == "train" and self.limits.checks_drift(plan.rollout_index),
            hint=hint_for(hint, plan.task) if hint is not None and plan.mode == "train" else None,
            adapters=None if self._adapters is None else self._adapters.for_task(plan.task),
            **episode,
        )

    async def _judge_output(
        self, trajectory: Trajectory, judge_in_group: JudgeInGroup | None
    ) -> Trajectory:
        """Returns the trajectory with its reward. It stays unchanged without an output, and if
        nobody gives a reward and none is needed."""
        plan, output = trajectory.workflow_task, trajectory.output
        if output is None:
            return trajectory
        judge = self.parts_for(plan.mode).judge
        has_no_reward = judge is None and output.reward is None
        if has_no_reward and plan.mode != "eval" and not self.limits.needs_reward:
            return trajectory
        if trajectory.is_malformed:
            reward = self.limits.malformed.reward
            breakdown = {"malformed": reward}
            return replace(trajectory, reward=reward, is_success=False, reward_breakdown=breakdown)
        if has_no_reward and trajectory.outcome is EpisodeStatus.TRUNCATED:
            # A workflow that rewards itself, but was cut before it could, has earned nothing.
            output = copy.copy(output)
            output.reward, output.is_success = 0.0, False
            trajectory = replace(trajectory, output=output)
        if output.reward is None and judge_in_group is not None:
            with in_call(GROUP_JUDGE):
                return await judge_in_group(trajectory)

        async def ask_judge() -> Verdict:
            # Without a judge the workflow's own reward is only checked.
            with nullcontext() if judge is None else in_call(f"judge {type(judge).__name__}"):
                async with self._judge_slots:
                    return await verdict(judge, plan, output, self.limits.episode_timeout_s)

        return await with_verdict(trajectory, ask_judge(), self)


class JudgeSettings(Protocol):
    """What to do with a judge's exception, raise it (`debug`) or report it, and with its verdict.
    `EpisodeRunner` and `GroupRunner` have these attributes."""

    debug: bool
    on_error: OnError
    limits: RolloutLimits


async def with_verdict(
    trajectory: Trajectory, pending_verdict: Awaitable[Verdict], settings: JudgeSettings
) -> Trajectory:
    """Returns the trajectory with its verdict, or with the status of the judge's failure. A verdict
    without a success counts as one from the reward `limits.success_threshold` on."""
    limits = settings.limits
    assert trajectory.output is not None
    source = "judge" if trajectory.output.reward is None else "workflow"
    started_s = time.perf_counter()
    try:
        judged = await pending_verdict
        require_rewards(judged, limits.reward_names, source)
        require_agent_rewards(judged, trajectory.trained_agents, source)
    except JudgeFault as fault:
        if settings.debug:
            raise fault.__cause__ or fault from None
        settings.on_error(fault.__cause__ or fault)
        is_environment_fault = isinstance(fault.__cause__, EnvironmentFault)
        outcome = EpisodeStatus.ENV_ERROR if is_environment_fault else EpisodeStatus.JUDGE_ERROR
        return replace(trajectory, outcome=outcome, failure=redact(str(fault)), truncation=None)
    except asyncio.CancelledError:
        return replace(trajectory, outcome=EpisodeStatus.ABORTED, failure=STOPPED, truncation=None)
    is_success = judged.is_success
    if is_success is None:
        is_success = judged.reward >= limits.success_threshold
    return replace(
        trajectory,
        output=judged.output,
        reward=judged.reward,
        is_success=is_success,
        reward_breakdown={source: judged.reward},
        timings=trajectory.timings | {"judge_s": time.perf_counter() - started_s},
    )


def awaits_group_verdict(trajectory: Trajectory) -> bool:
    """Tells whether the reward is still to come from a group judge."""
    output = trajectory.output
    return output is not None and output.reward is None and trajectory.reward is None
