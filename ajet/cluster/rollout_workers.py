"""Rollouts over many processes: whole groups are dealt, trajectories stream back as they end.

    tasks -> lots (a group each) ──deal──> worker 0   worker 1   worker 2     max_env_worker
                 ^                            │          │          │       between them, divided
                 └── unfinished members ──────┴── died, or blocked: another takes its place
                                              │
    groups <─ in the order of the tasks <─────┴─ episodes, each told to `on_episode` at once

`rollout` is `EpisodeRunner.rollout`: ids, seeds and the failure policy are the same, and the
failure rate is that of all workers together. A worker that dies, or whose event loop stands still
for longer than an episode may take, loses its unfinished episodes only: they begin again with their
plan and seeds. A group that was lost twice runs alone, so that it takes no other with it; after the
third time its unfinished members have failed.

Not covered: members that redundancy stops are those that end last by the clock; what one process
does (rollout_worker.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from loguru import logger
from ray.cloudpickle import cloudpickle
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from ajet.cluster.lost import ProcessLost, answer, answers
from ajet.cluster.rollout_worker import MAX_CALLS, GroupEnd, Order, RolloutWorker, Words
from ajet.cluster.user_code import Surroundings
from ajet.core import assembly
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.rollout.early_stop import first_members
from ajet.core.rollout.failure import apply_policy, check_failure_rate, has_failed
from ajet.core.rollout.plans import episode_id_of, group_id_of, plans_of
from ajet.core.rollout.runner import OnEpisode, somebody_is_trained
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.workflow.workflow import Mode

BEAT_S = 1.0
MAX_LOSSES = 3
ALONE_AFTER = 2
ActorOptions = dict[str, Any]


@dataclass(eq=False)
class Lot:
    """A group on its way; `ran` are its members that are finished, in the order of their ends."""

    place: int
    order: Order
    group_id: str
    size: int
    ran: dict[int, Trajectory] = field(default_factory=dict)
    losses: int = 0

    @property
    def num_running(self) -> int:
        return min(self.size - len(self.ran), self.order.limit)

    def take_finished(self, finished: Mapping[str, Trajectory]) -> None:
        """Members that ended before."""
        ids = {place: episode_id_of(self.group_id, place) for place in range(self.size)}
        self.ran = {place: finished[id_] for place, id_ in ids.items() if id_ in finished}

    def with_finished(self) -> Order:
        finished = {episode_id_of(self.group_id, place): t for place, t in self.ran.items()}
        return replace(self.order, finished=finished)


@dataclass(eq=False)
class Seat:
    """A worker's place: who sits there may change."""

    number: int
    actor: Any = None
    started: asyncio.Task[int] | None = None
    lots: set[Lot] = field(default_factory=set)
    fault: str = ""
    silent_since: float | None = None  # of the monotonic clock

    @property
    def is_ready(self) -> bool:
        """Whether somebody sits there who has started."""
        return self.started is not None and self.started.done()

    @property
    def name(self) -> str:
        return f"rollout worker {self.number}"

    def silent_s(self, heard: bool, now: float) -> float:
        """Seconds without an answer, after one more beat; however many rollouts ask."""
        if heard:
            self.silent_since = None
            return 0.0
        if self.silent_since is None:
            self.silent_since = now - BEAT_S  # so long we waited
        return now - self.silent_since

    @property
    def num_running(self) -> int:
        return sum(lot.num_running for lot in self.lots)


class RolloutWorkers:
    """As many processes as there are options, or as episodes may run at the same time."""

    def __init__(
        self,
        config: AjetConfig,
        options: Sequence[ActorOptions],
        *,
        blocked_after_s: float | None = None,
    ) -> None:
        """`options` has how Ray is to place each process. A loop that stands still for
        `blocked_after_s` is lost; None is the deadline of an episode."""
        self._config = config
        self._limits = assembly.rollout_limits(config)
        self._options = list(options)
        self._blocked_after_s = blocked_after_s
        self._surroundings = Surroundings.of_this_process()
        self._has_trained = False
        self._num_rollouts = 0
        num = min(len(self._options), self._limits.max_env_worker)
        self.seats = [Seat(number) for number in range(num)]

    async def check(self) -> None:
        """The user's code can be imported in every process; a mistake in it is one line."""
        calls = [self._sit(seat).check.remote(self._config) for seat in self.seats]
        await answers(calls, [seat.name for seat in self.seats])

    async def start(self, make_endpoint: Callable[[], ModelEndpoint], words: Words) -> None:
        """All processes, ready for episodes. `make_endpoint` is called in each of them."""
        self._make_endpoint, self._words = make_endpoint, words
        await asyncio.gather(*map(self.started, self.seats))

    async def started(self, seat: Seat) -> int:
        """The id of the process that sits there."""
        self.fill(seat)
        assert seat.started is not None
        return await asyncio.shield(seat.started)

    def fill(self, seat: Seat) -> Any:
        """Who sits there, ready or about to be; made now if there is nobody."""
        actor = self._sit(seat)
        if seat.started is None:
            seat.started = asyncio.create_task(self._start(seat.name, actor))
        return actor

    @property
    def blocked_after_s(self) -> float:
        return self._blocked_after_s or self._config.ajet.rollout.episode_timeout_s

    def _sit(self, seat: Seat) -> Any:
        if seat.actor is None:
            options = {"num_cpus": 0, "max_concurrency": MAX_CALLS} | self._options[seat.number]
            remote = ray.remote(RolloutWorker).options(**options)
            seat.actor = remote.remote(seat.number, self._surroundings)
        return seat.actor

    async def _start(self, name: str, actor: Any) -> int:
        await answer(actor.check.remote(self._config), name)
        started = actor.start.remote(self._config, self._make_endpoint, self._words)
        return await answer(started, name)

    def leave(self, seat: Seat) -> None:
        """Whoever sits there is gone for good."""
        ray.kill(seat.actor)
        seat.actor = seat.started = None
        seat.fault, seat.silent_since = "", None

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
        """See `EpisodeRunner.rollout`."""
        if not tasks:
            return []
        size = num_repeat + redundancy
        busy = min(len(self.seats), len(tasks))
        total = failure_rate_of or size * len(tasks)
        numbers = list(numbers or range(len(tasks)))
        self._num_rollouts += 1
        lots = [
            Lot(
                place,
                Order(
                    self._num_rollouts,
                    task,
                    number,
                    step,
                    mode,
                    num_repeat,
                    redundancy,
                    total,
                    self._limits.max_env_worker // busy,
                    sampling,
                ),
                group_id_of(step, mode, number),
                size,
            )
            for place, (task, number) in enumerate(zip(tasks, numbers, strict=True))
        ]
        for lot in lots:
            lot.take_finished(finished or {})
        groups = await _Dealing(self, lots, on_episode or _nobody).run()
        if mode == "train" and not self._has_trained:
            self._has_trained = somebody_is_trained([t for g in groups for t in g.trajectories])
        return groups

    def given_up(self, lot: Lot, fault: str) -> list[Trajectory]:
        """The unfinished members of a group that no worker survives."""
        order = lot.order
        plans = plans_of(
            [order.task],
            [order.number],
            self._config.ajet.seed,
            step=order.step,
            mode=order.mode,
            size=lot.size,
        )
        error = f"its rollout worker was lost {lot.losses} times, at last because {fault}"
        return [
            Trajectory(plan, (), EpisodeStatus.ENV_ERROR, error=error)
            for plan in plans
            if plan.rollout_index not in lot.ran
        ]

    def ended(self, lot: Lot) -> Group:
        """The group of a lot that was given up, all of whose members are in `ran`."""
        members = tuple(lot.ran[place] for place in range(lot.size))
        group = Group(lot.group_id, members, lot.order.task)
        if lot.order.mode != "train":
            return group
        moments = {place: moment for moment, place in enumerate(lot.ran)}
        treated = apply_policy(group, self._limits.failure_policy)
        return first_members(treated, moments, lot.order.num_repeat)

    @property
    def max_failure_rate(self) -> float:
        return self._limits.max_failure_rate

    def close(self) -> None:
        """End the processes."""
        for seat in self.seats:
            if seat.actor is not None:
                self.leave(seat)


class _Dealing:
    """One rollout: which lot is at which worker."""

    def __init__(self, workers: RolloutWorkers, lots: Sequence[Lot], on_episode: OnEpisode) -> None:
        self._workers = workers
        self._lots = lots
        self._waiting = deque(lots)
        self._alone: deque[Lot] = deque()
        self._on_episode = on_episode
        self._failed: list[Trajectory] = []
        self._groups: dict[int, Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    async def run(self) -> list[Group]:
        watch = asyncio.create_task(self._watch())
        try:
            while len(self._groups) < len(self._lots) and self._failure is None:
                self._deal()
                await self._changed.wait()
                self._changed.clear()
        finally:
            watch.cancel()
            self._stop()
            for task in self._tasks:
                task.cancel()
        if self._failure is not None:
            raise self._failure
        return [self._groups[place] for place in range(len(self._lots))]

    def _stop(self) -> None:
        """End what of this rollout is still at workers; they go on with others."""
        for seat in self._workers.seats:
            of_this = [lot for lot in self._lots if lot in seat.lots]
            if of_this and seat.is_ready:
                seat.actor.stop.remote(of_this[0].order.rollout)

    def _deal(self) -> None:
        """As much as there is room for, to the worker with the least to do."""
        for seat in sorted(self._workers.seats, key=lambda seat: (seat.num_running, seat.number)):
            if self._alone and not seat.lots:
                self._give(seat, self._alone.popleft())
        while self._waiting:
            lot = self._waiting[0]
            seats = [seat for seat in self._workers.seats if self._has_room(seat, lot)]
            if not seats:
                return
            self._waiting.popleft()
            self._give(min(seats, key=lambda seat: (seat.num_running, seat.number)), lot)

    @staticmethod
    def _has_room(seat: Seat, lot: Lot) -> bool:
        if any(each.losses >= ALONE_AFTER for each in seat.lots):
            return False
        return seat.num_running + lot.num_running <= lot.order.limit

    def _give(self, seat: Seat, lot: Lot) -> None:
        seat.lots.add(lot)
        task = asyncio.create_task(self._run(seat, lot))
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        self._changed.set()

    async def _run(self, seat: Seat, lot: Lot) -> None:
        actor = self._workers.fill(seat)
        try:
            await self._workers.started(seat)
            stream = actor.rollout.options(num_returns="streaming").remote(lot.with_finished())
            async for told in stream:
                self._take(lot, await told)
        except (RayActorError, ProcessLost, ObjectLostError):  # the last: its node went along
            self._lost(seat, lot, actor)
        except RayTaskError as error:
            raise error.cause from None
        finally:
            seat.lots.discard(lot)

    def _take(self, lot: Lot, told: bytes | GroupEnd) -> None:
        if isinstance(told, GroupEnd):
            members = told.whole(lot.ran)
            self._groups[lot.place] = Group(lot.group_id, members, lot.order.task)
        else:
            self._ended(lot, cloudpickle.loads(told))
        self._changed.set()

    def _ended(self, lot: Lot, trajectory: Trajectory) -> None:
        lot.ran[trajectory.workflow_task.rollout_index] = trajectory
        self._on_episode(trajectory)
        if has_failed(trajectory):
            self._failed.append(trajectory)
            rate = self._workers.max_failure_rate
            check_failure_rate(self._failed, lot.order.failure_rate_of, rate)

    def _lost(self, seat: Seat, lot: Lot, actor: Any) -> None:
        """Its process is gone. The first lot that notices says it."""
        fault = seat.fault or "its process ended"
        if actor is seat.actor:
            num = sum(each.size - len(each.ran) for each in seat.lots)
            logger.warning(
                f"{seat.name} is lost because {fault}: another takes its place, "
                f"unfinished episodes begin again ({num})"
            )
            self._workers.leave(seat)
        lot.losses += 1
        if lot.losses >= MAX_LOSSES:
            for trajectory in self._workers.given_up(lot, fault):
                self._ended(lot, trajectory)
            self._groups[lot.place] = self._workers.ended(lot)
        elif lot.losses >= ALONE_AFTER:
            self._alone.append(lot)
        else:
            self._waiting.appendleft(lot)

    async def _watch(self) -> None:
        """Ends processes whose event loop stands still: Ray sees only those that are gone."""
        while True:
            await asyncio.sleep(BEAT_S)
            self._changed.set()  # the end of another rollout may have made room for this one
            busy = [seat for seat in self._workers.seats if seat.lots and seat.is_ready]
            for seat, beat in zip(busy, await asyncio.gather(*map(_beat, busy)), strict=True):
                if not seat.is_ready:  # lost while we asked
                    continue
                silent_s = seat.silent_s(beat is not None, time.monotonic())
                stood_s, where = beat or (silent_s, "")
                if stood_s > self._workers.blocked_after_s:
                    place = f" at {where}" if where else ""
                    seat.fault = f"its event loop stood still for {stood_s:.0f} s{place}"
                    ray.kill(seat.actor)


async def _beat(seat: Seat) -> tuple[float, str] | None:
    """None where no answer comes."""
    try:
        return await asyncio.wait_for(_asked(seat.actor.beat.remote()), BEAT_S)
    except (TimeoutError, RayActorError, RayTaskError):
        return None


async def _asked(reference: Any) -> Any:
    return await reference


def _nobody(_trajectory: Trajectory) -> None:
    """Nobody listens."""
