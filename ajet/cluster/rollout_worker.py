"""One process that runs episodes: an `EpisodeRunner` on an event loop of its own.

    order (a group, its members that are finished)  ->  each trajectory as it ends  ->  GroupEnd

Ray calls in from its own threads, so the process answers (`beat`) even while a workflow blocks the
loop, and says how long the loop has stood still. What a workflow left in its output's metadata
travels in the form that the episode store keeps: objects of the user's stay where they are.

Not covered: who gets which group, and what becomes of a lost worker (rollout_workers.py).
"""

from __future__ import annotations

import asyncio
import copy
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from loguru import logger
from ray.cloudpickle import cloudpickle

from ajet.cluster.user_code import Surroundings
from ajet.core.bounded_loop import MAX_THREADS
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import ModelEndpoint, SamplingParams
from ajet.core.record.episode_store import plain
from ajet.core.rollout.failure import user_line
from ajet.core.task.task import Task
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.workflow.workflow import Mode, WorkflowTask

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ajet.core.rollout.runner import EpisodeRunner

TICK_S = 0.2
MAX_CALLS = 1000
"""Ray's threads: one for each group that runs here, and for a heartbeat."""


@dataclass(frozen=True, slots=True)
class Order:
    """One group of the rollout of number `rollout`. At most `limit` of its episodes run at once."""

    rollout: int
    task: Task
    number: int
    step: int
    mode: Mode
    num_repeat: int
    redundancy: int
    failure_rate_of: int
    limit: int
    sampling: SamplingParams | None = None
    finished: Mapping[str, Trajectory] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupEnd:
    """The members as the failure policy left them. What was sent before is not sent again: neither
    turns nor output of a member that ran."""

    members: tuple[Trajectory, ...]

    @classmethod
    def of(cls, group: Group) -> GroupEnd:
        return cls(tuple(map(_light, group.trajectories)))

    def whole(self, ran: Mapping[int, Trajectory]) -> tuple[Trajectory, ...]:
        """The members with what was sent before; `ran` are those that did, by their place."""
        return tuple(
            replace(
                light,
                workflow_task=ran[place].workflow_task,
                turns=ran[place].turns,
                output=ran[place].output,
                earlier_attempts=ran[place].earlier_attempts,
            )
            if place in ran
            else light
            for place, light in enumerate(self.members)
        )


@dataclass(frozen=True, slots=True)
class Words:
    """What a chat template is made of."""

    tokenizer: PreTrainedTokenizerBase
    end_token_ids: tuple[int, ...]
    today: datetime


class RolloutWorker:
    """Lives in an actor. Without a coroutine among its methods: Ray would run all of them on one
    loop, where a rollout that waits holds up the answer to `beat`."""

    def __init__(self, number: int, surroundings: Surroundings) -> None:
        self._number = number
        self._surroundings = surroundings

    def check(self, config: AjetConfig) -> None:
        """Imports the user's code; nothing heavy. Is called first."""
        self._surroundings.enter()
        from ajet.core import assembly
        from ajet.core.judge import judge_class, judge_spec

        assembly.make_workflow(config)
        judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)

    def start(
        self, config: AjetConfig, make_endpoint: Callable[[], ModelEndpoint], words: Words
    ) -> int:
        """Begins the loop; returns the process's id."""
        self._episodes = EpisodeLoop(config, make_endpoint, words, self._number)
        return os.getpid()

    def rollout(self, order: Order) -> Iterator[bytes | GroupEnd]:
        """Yields each trajectory as it ends, pickled, then the group's end; a rollout that is
        stopped has none."""
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        running = self._episodes.begin(order, told.put)
        running.add_done_callback(lambda _: told.put(None))
        while (trajectory := told.get()) is not None:
            yield packed(trajectory)
        if not running.cancelled():
            yield GroupEnd.of(running.result())

    def beat(self) -> tuple[float, str]:
        """Seconds since the loop last turned, and the line of the user's code where it stands."""
        return self._episodes.stood()

    def stop(self, rollout: int) -> None:
        """End the groups of that rollout; the others go on."""
        self._episodes.stop(rollout)


class EpisodeLoop:
    """The event loop that runs a worker's episodes, in a thread of its own."""

    def __init__(
        self,
        config: AjetConfig,
        make_endpoint: Callable[[], ModelEndpoint],
        words: Words,
        number: int,
    ) -> None:
        from ajet.core import assembly
        from ajet.core.inference.chat_template import ChatTemplate

        self._config = config
        self._judge = assembly.make_judge(config)
        self._template = ChatTemplate(words.tokenizer, words.end_token_ids)
        self._template.today = words.today
        self._endpoint = make_endpoint()
        self._gateway = assembly.make_gateway(config, offset=number)
        self._runners: dict[tuple[Mode, int], EpisodeRunner] = {}
        self._groups: dict[asyncio.Task[Group], int] = {}  # with their rollouts
        self._stopped: set[int] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(ThreadPoolExecutor(MAX_THREADS, "ajet"))
        self._ticked_s = time.monotonic()
        self._thread = threading.Thread(target=self._live, name="ajet-episodes", daemon=True)
        self._thread.start()

    def begin(self, order: Order, tell: Callable[[Trajectory], None]) -> Future[Group]:
        """One group's rollout; `tell` is called in the loop's thread as each episode ends."""
        return asyncio.run_coroutine_threadsafe(self._run(order, tell), self._loop)

    def stood(self) -> tuple[float, str]:
        """Since when, in seconds, and where in the user's code."""
        stood_s = time.monotonic() - self._ticked_s
        return stood_s, self._place() if stood_s > 10 * TICK_S else ""

    def stop(self, rollout: int) -> None:
        """Cancels its groups, those too that are yet to come."""
        self._loop.call_soon_threadsafe(self._stop, rollout)

    def _stop(self, rollout: int) -> None:
        self._stopped.add(rollout)
        for group, of_rollout in self._groups.items():
            if of_rollout == rollout:
                group.cancel()

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._tick())
        self._loop.run_forever()

    async def _tick(self) -> None:
        while True:
            self._ticked_s = time.monotonic()
            await asyncio.sleep(TICK_S)

    async def _run(self, order: Order, tell: Callable[[Trajectory], None]) -> Group:
        if order.rollout in self._stopped:
            raise asyncio.CancelledError
        group = asyncio.current_task()
        assert group is not None
        self._groups[group] = order.rollout
        try:
            return await self._played(order, tell)
        finally:
            del self._groups[group]

    async def _played(self, order: Order, tell: Callable[[Trajectory], None]) -> Group:
        runner = self._runner(order.mode, order.limit)
        groups = await runner.rollout(
            [order.task],
            step=order.step,
            mode=order.mode,
            num_repeat=order.num_repeat,
            redundancy=order.redundancy,
            numbers=[order.number],
            failure_rate_of=order.failure_rate_of,
            on_episode=tell,
            sampling=order.sampling,
            finished=order.finished,
        )
        return groups[0]

    def _runner(self, mode: Mode, limit: int) -> EpisodeRunner:
        if (mode, limit) not in self._runners:
            self._runners[mode, limit] = self._make_runner(mode, limit)
        return self._runners[mode, limit]

    def _make_runner(self, mode: Mode, limit: int) -> EpisodeRunner:
        from ajet.core import assembly

        limits = replace(assembly.rollout_limits(self._config), max_env_worker=limit)
        return assembly.make_runner(
            self._config,
            self._endpoint,
            self._template,
            judge=self._judge,
            mode=mode,
            gateway=self._gateway,
            limits=limits,
            is_part=True,
        )

    def _place(self) -> str:
        """The innermost line of the user's own on the loop's stack."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return user_line(traceback.extract_stack(frame)) if frame else ""


def packed(trajectory: Trajectory) -> bytes:
    """Pickled; where the messages hold what cannot be, they go as a reader of the store finds them,
    like the output's metadata."""
    light = _with_plain_output(trajectory)
    try:
        return cloudpickle.dumps(light)
    except Exception:  # noqa: BLE001  # the user's objects may refuse as they like
        logger.warning(f"{trajectory.episode_id}: its messages hold objects: they are kept as text")
        return cloudpickle.dumps(_with_plain_turns(light))


def _light(trajectory: Trajectory) -> Trajectory:
    who = _with_plain_task(trajectory.workflow_task)
    return replace(trajectory, workflow_task=who, turns=(), output=None, earlier_attempts=())


def _with_plain_task(who: WorkflowTask) -> WorkflowTask:
    """A workflow may have put anything into its copy of the task."""
    task = replace(
        who.task, init_messages=plain(who.task.init_messages), metadata=plain(who.task.metadata)
    )
    return replace(who, task=task)


def _with_plain_output(trajectory: Trajectory) -> Trajectory:
    output = trajectory.output
    if output is not None:
        output = copy.copy(output)
        output.metadata, output.log_metrics = plain(output.metadata), dict(output.log_metrics)
    return replace(
        trajectory,
        workflow_task=_with_plain_task(trajectory.workflow_task),
        output=output,
        earlier_attempts=tuple(map(_with_plain_output, trajectory.earlier_attempts)),
    )


def _with_plain_turns(trajectory: Trajectory) -> Trajectory:
    turns = (
        replace(
            turn,
            messages=plain(turn.messages),
            tools=plain(turn.tools),
            reply=plain(turn.reply),
            notes=plain(turn.notes),
        )
        for turn in trajectory.turns
    )
    earlier = tuple(map(_with_plain_turns, trajectory.earlier_attempts))
    return replace(trajectory, turns=tuple(turns), earlier_attempts=earlier)
