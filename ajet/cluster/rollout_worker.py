"""One process that runs episodes, on an event loop in a thread. Ray calls it in other threads, so
`heartbeat` answers even while a workflow blocks the event loop, and says for how long.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from loguru import logger
from ray.cloudpickle import cloudpickle

from ajet.cluster.actors import ImportEnv
from ajet.cluster.shared_images import SharedImages
from ajet.core.config import AjetConfig
from ajet.core.config.redacted import remember_secrets_of
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.process.bounded_loop import MAX_THREADS
from ajet.core.process.descriptors import raise_descriptor_limit
from ajet.core.record.run_log import begin_screen_log
from ajet.core.rollout.admission import Slot
from ajet.core.rollout.answered import AnsweredCall
from ajet.core.rollout.stops import Stop
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.error_text import one_line, user_line
from ajet.core.trajectory.plain_trajectory import plain_trajectory
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import CurrentCall

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.workflow.registry import WorkflowFactory

TICK_S = 0.2
MAX_CALLS = 8
"""Ray's threads: one waits for events, the others begin episodes and answer heartbeats."""


@dataclass(frozen=True, slots=True)
class WorkflowEnded:
    """The workflow of this episode has ended with this status; the judge may not have."""

    key: str
    status: EpisodeStatus


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The model has answered a call of this episode."""

    key: str
    call: AnsweredCall


@dataclass(frozen=True, slots=True)
class EpisodeEnded:
    """The episode has ended; `trajectory` is pickled."""

    key: str
    trajectory: bytes


class PlanUnreadable(Exception):
    """A worker cannot unpickle an episode's plan."""


@dataclass(frozen=True, slots=True)
class EpisodeRaised:
    """There is no trajectory: the episode cannot begin (`PlanUnreadable`), or it has raised an
    error that ends the run."""

    key: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """For how many seconds a worker's event loop has been blocked, by which line of the user's
    code, and the current call of each of its episodes."""

    stall_s: float
    line: str
    calls: Mapping[str, CurrentCall] = field(default_factory=dict)


Event = CallAnswered | WorkflowEnded | EpisodeEnded | EpisodeRaised


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """The parts of a chat template: tokenizer, the model's end tokens, the day the run began, and
    the images that the model sees."""

    tokenizer: PreTrainedTokenizerBase
    end_token_ids: tuple[int, ...]
    today: datetime
    images: SharedImages | None = None

    def template(self) -> ChatTemplate:
        from ajet.core.inference.chat_template import ChatTemplate

        processor = self.images and self.images.processor()
        template = ChatTemplate(self.tokenizer, self.end_token_ids, processor)
        template.today = self.today
        return template


class RolloutWorker:
    """The actor's class. None of its methods is a coroutine: Ray would run them all on one event
    loop, where an episode that blocks would delay the answer to `heartbeat`."""

    def __init__(self, number: int, import_env: ImportEnv) -> None:
        self._number = number
        self._import_env = import_env

    def check(self, config: AjetConfig) -> None:
        """Imports the user's code, without loading large packages. Is called first."""
        begin_screen_log(verbose=False)
        remember_secrets_of(config)
        self._import_env.enter()
        raise_descriptor_limit()
        from ajet.core.judge import judge_class, judge_spec
        from ajet.core.task.reader import user_reader_class
        from ajet.core.workflow.registry import WorkflowFactory

        self._workflows = WorkflowFactory.from_config(config)
        user_reader_class(config)  # tasks may hold objects of classes that its module defines
        judge_class(judge_spec(config.ajet.task_judge), config.base_dirs)

    def start(
        self, config: AjetConfig, make_endpoint: Callable[[], ModelEndpoint], spec: TokenizerSpec
    ) -> int:
        """Starts the event loop; returns the process's id."""
        self._episodes = EpisodeLoop(config, self._workflows, make_endpoint, spec, self._number)
        return os.getpid()

    def begin(
        self,
        key: str,
        packed_plan: bytes,
        stops: Mapping[str, Stop],
        answered: Sequence[AnsweredCall] | None,
    ) -> None:
        """Starts an episode; its events carry `key`. `packed_plan` is a pickled WorkflowTask;
        `stops` are requested stops of its attempts. `answered` are its calls that an earlier
        attempt of the run stored; None if the run stores none."""
        try:
            plan = cloudpickle.loads(packed_plan)
        except Exception as error:  # noqa: BLE001  # a task may hold any object
            self._episodes.refuse(key, one_line(error))
            return
        run = self._episodes.run(key, plan, stops, answered)
        asyncio.run_coroutine_threadsafe(run, self._episodes.loop)

    def take_events(self) -> list[Event]:
        """Waits for an event; returns all since the last call."""
        return self._episodes.take_events()

    def heartbeat(self) -> Heartbeat:
        return self._episodes.heartbeat()

    def stop(self, episode_id: str, stop: Stop) -> None:
        """Ends an attempt at an episode; its trajectory comes as an event."""
        self._episodes.stop(episode_id, stop)

    def cancel(self, keys: Sequence[str]) -> None:
        """Cancels these episodes; their trajectories come as events."""
        self._episodes.cancel(keys)


class EpisodeLoop:
    """The event loop that runs a worker's episodes, in a daemon thread."""

    def __init__(
        self,
        config: AjetConfig,
        workflows: WorkflowFactory,
        make_endpoint: Callable[[], ModelEndpoint],
        spec: TokenizerSpec,
        number: int,
    ) -> None:
        from ajet import assembly
        from ajet.core.judge import make_judge
        from ajet.core.judge.judge import GroupJudge

        judge = make_judge(config)
        self._is_judged_in_groups = isinstance(judge, GroupJudge)
        self._endpoint = make_endpoint()
        self._executor = assembly.make_runner(
            config,
            self._endpoint,
            spec.template(),
            judge=judge,
            gateway=assembly.make_gateway(config, offset=number),
            workflows=workflows,
        ).executor
        self._running: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, Stop] = {}
        self._executor.set_stops(self._stops)
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(MAX_THREADS, "ajet"))
        self._last_tick_s = time.monotonic()
        self._thread = threading.Thread(target=self._run_loop, name="ajet-episodes", daemon=True)
        self._thread.start()

    def refuse(self, key: str, reason: str) -> None:
        """Reports that the episode cannot begin; is called from another thread."""
        self._events.put(EpisodeRaised(key, PlanUnreadable(reason)))

    async def run(
        self,
        key: str,
        plan: WorkflowTask,
        stops: Mapping[str, Stop],
        answered: Sequence[AnsweredCall] | None,
    ) -> None:
        """Runs an episode on this loop and reports its events."""
        self._stops |= stops
        task = asyncio.current_task()
        assert task is not None
        self._running[key] = task
        slot = Slot(plan.episode_id, self._endpoint)
        slot.on_workflow_end = lambda status: self._events.put(WorkflowEnded(key, status))
        if answered is not None:
            slot.answered = answered
            slot.on_call = lambda call: self._events.put(CallAnswered(key, call))

        async def without_verdict(trajectory: Trajectory) -> Trajectory:
            return trajectory  # the judge of a whole group runs in the driver

        judge_in_group = without_verdict if self._is_judged_in_groups else None
        try:
            trajectory = await self._executor.run(plan, slot, judge_in_group)
            packed = pack(trajectory, keeps_output=self._is_judged_in_groups)
            ended: Event = EpisodeEnded(key, packed)
        except Exception as error:  # noqa: BLE001  # raised again in the driver
            ended = EpisodeRaised(key, _picklable(error))
        finally:
            del self._running[key]
            slot.free()
        self._events.put(ended)

    def take_events(self) -> list[Event]:
        """Waits for an event; returns all that are there."""
        events = [self._events.get()]
        while True:
            try:
                events.append(self._events.get_nowait())
            except queue.Empty:
                return events

    def heartbeat(self) -> Heartbeat:
        """Returns a `Heartbeat`; is called from another thread."""
        stall_s = time.monotonic() - self._last_tick_s
        line = ""
        if stall_s > 10 * TICK_S:  # the innermost line of the user's code on the loop's stack
            frame = sys._current_frames().get(self._thread.ident or 0)
            line = user_line(traceback.extract_stack(frame)) if frame else ""
        return Heartbeat(stall_s, line, self._executor.calls())

    def stop(self, episode_id: str, stop: Stop) -> None:
        """Stops an attempt at an episode; is called from another thread."""
        self.loop.call_soon_threadsafe(self._executor.stop, episode_id, stop)

    def cancel(self, keys: Sequence[str]) -> None:
        """Cancels these episodes; is called from another thread."""

        def cancel_running() -> None:
            for key in keys:
                if (task := self._running.get(key)) is not None:
                    task.cancel()

        self.loop.call_soon_threadsafe(cancel_running)

    def _run_loop(self) -> None:
        from ajet.core.rollout.gc_thresholds import infrequent_gc

        async def tick() -> None:
            while True:
                self._last_tick_s = time.monotonic()
                await asyncio.sleep(TICK_S)

        asyncio.set_event_loop(self.loop)
        self.loop.create_task(tick())
        with infrequent_gc():
            self.loop.run_forever()


def _picklable(error: BaseException) -> BaseException:
    """Returns the error, or a RuntimeError with its text if it cannot be pickled."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # noqa: BLE001  # the user's exceptions may do anything
        return RuntimeError(one_line(error))
    return error


def pack(trajectory: Trajectory, *, keeps_output: bool = False) -> bytes:
    """Pickles a trajectory as plain data. With `keeps_output`, for a judge of groups, which runs in
    the driver, with the workflow's objects, if they can be pickled."""
    if keeps_output:
        try:
            packed = cloudpickle.dumps(trajectory)
            cloudpickle.loads(packed)  # some objects can be pickled but not unpickled
            return packed
        except Exception:  # noqa: BLE001  # the user's objects may refuse as they like
            logger.warning(
                f"{trajectory.episode_id}: its output cannot be pickled: the judge sees it as text"
            )
    return cloudpickle.dumps(plain_trajectory(trajectory))
