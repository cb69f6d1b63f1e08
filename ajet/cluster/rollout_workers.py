"""Runs episodes in many processes: each is admitted separately and runs where a slot is free.

GroupRunner ──admits──> run(plan) ──> worker 0   worker 1   worker 2     max_env_worker slots
                            ^            │          │          │         between them
                            └────────────┴── lost: another process replaces it
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from loguru import logger
from ray.cloudpickle import cloudpickle
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from ajet.cluster.actors import ImportEnv, ProcessLost, result_of, results_of
from ajet.cluster.rollout_worker import (
    MAX_CALLS,
    CallAnswered,
    EpisodeRaised,
    Event,
    Heartbeat,
    PlanUnreadable,
    RolloutWorker,
    TokenizerSpec,
    WorkflowEnded,
)
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.judge import judge_class, judge_spec, make_judge
from ajet.core.judge.judge import GroupJudge
from ajet.core.rollout.admission import Admission, Slot
from ajet.core.rollout.episode import GROUP_JUDGE, JudgeInGroup, awaits_group_verdict
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.stops import Stop
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.error_text import one_line
from ajet.core.trajectory.plain_trajectory import plain_trajectory
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import Activity, CurrentCall

HEARTBEAT_S = 1.0
CANCEL_GRACE_S = 5.0
"""How long the trajectory of a cancelled episode may take after its workflow's deadline."""
MAX_LOSSES = 3
ISOLATE_AFTER = 2
"""The number of losses after which an episode runs alone in a worker."""
ActorOptions = dict[str, Any]


class WorkerLost(Exception):
    """The process that ran an episode has ended."""


@dataclass(eq=False)
class RunningEpisode:
    """An episode in a worker: its admission slot, and the future of its trajectory."""

    slot: Slot
    trajectory: asyncio.Future[Trajectory]


@dataclass(eq=False)
class WorkerSlot:
    """The position of one worker, whose process may be replaced. It runs at most `capacity`
    episodes at a time."""

    number: int
    capacity: int
    actor: Any = None
    started: asyncio.Task[int] | None = None
    listening: asyncio.Task[None] | None = None
    running: dict[str, RunningEpisode] = field(default_factory=dict)  # by key
    is_reserved: bool = False  # for one isolated episode
    calls: Mapping[str, CurrentCall] = field(default_factory=dict)
    fault: str = ""
    silent_since: float | None = None  # on the monotonic clock

    @property
    def is_ready(self) -> bool:
        """Whether the position has a process that has started."""
        return self.started is not None and self.started.done()

    @property
    def name(self) -> str:
        return f"rollout worker {self.number}"

    @property
    def num_free(self) -> int:
        """The number of episodes that may begin here now."""
        return 0 if self.is_reserved else self.capacity - len(self.running)

    def silent_s(self, heard: bool, now: float) -> float:
        """Returns the seconds without an answer; `heard`: the last heartbeat was answered."""
        if heard:
            self.silent_since = None
            return 0.0
        if self.silent_since is None:
            self.silent_since = now - HEARTBEAT_S  # the time that this heartbeat was awaited
        return now - self.silent_since


class RolloutWorkers:
    """An `EpisodeExecutor` over worker processes: ids, seeds, groups and the failure policy are
    those of one process (core/rollout). One for each of `options`, but at most one per slot.

    A worker is lost if its process dies or its event loop is blocked for longer than an episode may
    take. Its unfinished episodes begin again elsewhere with the same plan and seeds. An episode
    that was lost twice runs in a worker alone, so that it takes no other along; the third time it
    has failed."""

    def __init__(
        self,
        config: AjetConfig,
        options: Sequence[ActorOptions],
        *,
        blocked_after_s: float | None = None,
        on_lost: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """`options` are the Ray options of each process. A worker whose event loop is blocked for
        `blocked_after_s` is lost; None means the deadline of an episode. `on_lost` gets the id of
        each process that has ended."""
        self._config = config
        self._limits = RolloutLimits.from_config(config)
        self._options = list(options)
        self._blocked_after_s = blocked_after_s
        self._on_lost = on_lost
        self._import_env = ImportEnv.current()
        total = self._limits.max_env_worker
        num = min(len(self._options), total)
        # The capacities add up to `total`; the first workers get one more.
        self.slots = [WorkerSlot(n, total // num + (n < total % num)) for n in range(num)]
        # By episode id of the attempt: those whose group the judge in this process is judging.
        self._awaiting_verdict: dict[str, Activity] = {}
        self._stops: Mapping[str, Stop] = {}
        self._numbers = itertools.count()
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Imports the user's code in every process; raises its error, if any."""
        calls = [self._actor(slot).check.remote(self._config) for slot in self.slots]
        await results_of(calls, [slot.name for slot in self.slots])

    async def start(
        self, make_endpoint: Callable[[], ModelEndpoint], spec: TokenizerSpec
    ) -> GroupRunner:
        """Starts all processes, which call `make_endpoint`; returns a runner of groups on them."""
        self._make_endpoint, self._spec = make_endpoint, spec
        await asyncio.gather(*map(self.started, self.slots))
        judge_type = judge_class(judge_spec(self._config.ajet.task_judge), self._config.base_dirs)
        is_for_groups = judge_type is not None and issubclass(judge_type, GroupJudge)
        return GroupRunner(
            self,
            Admission(self._limits.max_env_worker),
            limits=self._limits,
            run_seed=self._config.ajet.seed,
            judge=make_judge(self._config) if is_for_groups else None,
        )

    async def run(
        self, plan: WorkflowTask, slot: Slot, judge_in_group: JudgeInGroup | None = None
    ) -> Trajectory:
        """Runs an episode (see `EpisodeExecutor`); begins it again if its worker is lost."""
        try:
            packed = cloudpickle.dumps(plan)
        except Exception as error:  # noqa: BLE001  # a task may hold any object
            return _not_sent(plan, slot, one_line(error))
        losses = 0
        while True:
            worker = await self._free_worker(isolated=losses >= ISOLATE_AFTER)
            # A new key each time, so that late events of a cancelled run are ignored.
            key = f"{plan.episode_id}#{next(self._numbers)}"
            running = worker.running[key] = RunningEpisode(slot, asyncio.Future())
            try:
                await self.started(worker)
                # The ids of an episode's attempts begin with the id of the episode.
                name = plan.episode_id
                stops = {n: stop for n, stop in self._stops.items() if n.startswith(name)}
                answered = None if slot.on_call is None else slot.answered
                worker.actor.begin.remote(key, packed, stops, answered)
                # Shielded: a cancelled episode still sends what it has done (`_cancelled`).
                trajectory = await asyncio.shield(running.trajectory)
                break
            except (WorkerLost, ProcessLost) as lost:
                losses += 1
                if losses == MAX_LOSSES:
                    error = f"its rollout worker was lost {losses} times, lastly because {lost}"
                    trajectory = Trajectory(plan, (), EpisodeStatus.ENV_ERROR, failure=error)
                    slot.workflow_ended(trajectory.status)
                    break
            except PlanUnreadable as refused:
                trajectory = _not_sent(plan, slot, str(refused))
                break
            except asyncio.CancelledError:
                trajectory = await self._cancelled(worker, key, plan, running)
                break
            finally:
                self._remove(worker, key)
        if judge_in_group is not None and awaits_group_verdict(trajectory):
            return await self._judged(trajectory, judge_in_group)
        return trajectory

    async def _judged(self, trajectory: Trajectory, judge_in_group: JudgeInGroup) -> Trajectory:
        """Returns the trajectory with the verdict on its group, whose judge runs in this process.

        The worker has noted by its clock when the judge was asked. The judge's duration is measured
        here and added to that time, since the clocks of two machines may differ."""
        activity = self._awaiting_verdict[trajectory.episode_id] = Activity(trajectory.episode_id)
        try:
            with activity.calling(GROUP_JUDGE):
                judged = await judge_in_group(trajectory)
        finally:
            del self._awaiting_verdict[trajectory.episode_id]
        [took] = activity.calls
        seconds = took.ended_s - took.started_s
        calls = (
            replace(call, ended_s=call.started_s + seconds) if call.name == GROUP_JUDGE else call
            for call in judged.calls
        )
        return replace(judged, calls=tuple(calls))

    def calls(self) -> Mapping[str, CurrentCall]:
        """Returns the current call of each running episode, as of its worker's last heartbeat, and
        of those that wait for the judge of their group."""
        in_workers = {name: call for worker in self.slots for name, call in worker.calls.items()}
        return in_workers | {
            name: activity.now() for name, activity in self._awaiting_verdict.items()
        }

    def stop(self, episode_id: str, stop: Stop) -> bool:
        """Stops a running attempt at an episode; returns False if none has this id."""
        worker = next((slot for slot in self.slots if episode_id in slot.calls), None)
        if worker is None or not worker.is_ready:
            return False
        worker.actor.stop.remote(episode_id, stop)
        return True

    def set_stops(self, stops: Mapping[str, Stop]) -> None:
        """Sets the stops of attempts that have not begun."""
        self._stops = stops

    async def started(self, worker: WorkerSlot) -> int:
        """Returns the id of the process of this position; starts one if there is none."""
        actor = self._actor(worker)
        if worker.started is None:
            worker.started = asyncio.create_task(self._start(worker, actor))
        try:
            return await asyncio.shield(worker.started)
        except ProcessLost:
            if actor is worker.actor:
                self._on_worker_lost(worker, "its process ended")
            raise

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        for worker in self.slots:
            if worker.actor is not None:
                self._end(worker)

    @property
    def blocked_after_s(self) -> float:
        """The seconds that an event loop may be blocked before its worker is lost."""
        return self._blocked_after_s or self._config.ajet.rollout.episode_timeout_s

    # Where an episode runs.

    async def _free_worker(self, *, isolated: bool) -> WorkerSlot:
        """Waits for a free slot; returns the worker with the most of them. An `isolated` episode
        gets an empty worker, which is reserved for it."""
        while True:
            changed = self._changed
            free = [
                slot for slot in self.slots if slot.num_free and not (isolated and slot.running)
            ]
            if free:
                worker = max(free, key=lambda slot: (slot.num_free, -slot.number))
                worker.is_reserved = isolated
                return worker
            await changed.wait()

    def _remove(self, worker: WorkerSlot, key: str) -> None:
        """Removes an episode from this worker and wakes episodes waiting for a slot."""
        worker.running.pop(key, None)
        if not worker.running:
            worker.is_reserved = False
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _cancelled(
        self, worker: WorkerSlot, key: str, plan: WorkflowTask, running: RunningEpisode
    ) -> Trajectory:
        """Cancels an episode in its worker; returns its trajectory so far."""
        if worker.is_ready and not running.trajectory.done():
            worker.actor.cancel.remote([key])
            grace_s = self._limits.cancel_grace_s + CANCEL_GRACE_S
            await asyncio.wait({running.trajectory}, timeout=grace_s)
        if running.trajectory.done() and running.trajectory.exception() is None:
            return running.trajectory.result()
        running.trajectory.cancel()
        running.slot.free()
        return Trajectory(plan, (), EpisodeStatus.ABORTED, failure="the run was stopped")

    # Processes and their events.

    def _actor(self, worker: WorkerSlot) -> Any:
        if worker.actor is None:
            options = {"num_cpus": 0, "max_concurrency": MAX_CALLS} | self._options[worker.number]
            remote = ray.remote(RolloutWorker).options(**options)
            worker.actor = remote.remote(worker.number, self._import_env)
        return worker.actor

    async def _start(self, worker: WorkerSlot, actor: Any) -> int:
        await result_of(actor.check.remote(self._config), worker.name)
        started = actor.start.remote(self._config, self._make_endpoint, self._spec)
        pid = await result_of(started, worker.name)
        worker.listening = asyncio.create_task(self._listen(worker, actor, pid))
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return pid

    async def _listen(self, worker: WorkerSlot, actor: Any, pid: int) -> None:
        """Handles the events of one process until it has ended."""
        try:
            while True:
                for event in await actor.take_events.remote():
                    self._handle_event(worker, event)
        except (RayActorError, ObjectLostError):  # ObjectLostError: its node has ended too
            self._on_lost(pid)
            if actor is worker.actor:  # else `started` has noticed before, and replaced it
                self._on_worker_lost(worker, worker.fault or "its process ended")

    @staticmethod
    def _handle_event(worker: WorkerSlot, event: Event) -> None:
        running = worker.running.get(event.key)
        if running is None or running.trajectory.done():
            return
        if isinstance(event, CallAnswered):
            if running.slot.on_call is not None:
                running.slot.on_call(event.call)
        elif isinstance(event, WorkflowEnded):
            running.slot.workflow_ended(event.status)
        elif isinstance(event, EpisodeRaised):
            running.trajectory.set_exception(event.error)
        else:
            running.trajectory.set_result(cloudpickle.loads(event.trajectory))

    def _on_worker_lost(self, worker: WorkerSlot, fault: str) -> None:
        """Ends a lost process; its episodes begin again in others, and the position gets a new
        process with its next episode."""
        logger.warning(
            f"{worker.name} is lost because {fault}: another takes its place, "
            f"unfinished episodes begin again ({len(worker.running)})"
        )
        running = list(worker.running.values())
        self._end(worker)
        for episode in running:
            if not episode.trajectory.done():
                episode.trajectory.set_exception(WorkerLost(fault))

    def _end(self, worker: WorkerSlot) -> None:
        ray.kill(worker.actor)
        if worker.listening is not None and worker.listening is not asyncio.current_task():
            worker.listening.cancel()
        worker.actor = worker.started = worker.listening = None
        worker.fault, worker.silent_since, worker.calls = "", None, {}

    async def _watch(self) -> None:
        """Ends processes whose event loop is blocked: Ray only notices those that have ended."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            busy = [worker for worker in self.slots if worker.running and worker.is_ready]
            for idle in (worker for worker in self.slots if not worker.running):
                idle.calls = {}
            beats = await asyncio.gather(*map(_heartbeat, busy))
            for worker, beat in zip(busy, beats, strict=True):
                if not worker.is_ready:  # lost during the heartbeat
                    continue
                silent_s = worker.silent_s(beat is not None, time.monotonic())
                stall_s, line = (beat.stall_s, beat.line) if beat else (silent_s, "")
                worker.calls = beat.calls if beat else worker.calls
                if stall_s > self.blocked_after_s:
                    at = f" at {line}" if line else ""
                    worker.fault = f"its event loop was blocked for {stall_s:.0f} s{at}"
                    ray.kill(worker.actor)


async def _heartbeat(worker: WorkerSlot) -> Heartbeat | None:
    """Returns the worker's heartbeat, or None if the answer does not come in time."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            return await worker.actor.heartbeat.remote()
    except (TimeoutError, RayActorError, RayTaskError):
        return None


def _not_sent(plan: WorkflowTask, slot: Slot, reason: str) -> Trajectory:
    """Returns the trajectory of an episode whose task cannot be sent to a worker."""
    error = f"its task cannot be sent to a rollout worker: {reason}"
    failed = plain_trajectory(Trajectory(plan, (), EpisodeStatus.ENV_ERROR, failure=error))
    slot.workflow_ended(failed.status)
    return failed
