"""Starts episodes in their order, at most `num_slots` at once, whichever ends first.

    waiting   e5 e6 e7 …          the next one starts when a slot comes free
    running   e1 e2 e3 e4         each holds a Slot from its start to the end of its workflow

Concurrent rollouts of one runner share its slots. The endpoint is told which episodes are live
(`enter`, `leave`), and the next episode enters before the one that made room leaves. So an endpoint
that computes in waves can never begin one without it, and which requests are computed together does
not depend on timing (docs/adr/0001-waves.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from ajet.core.inference.endpoint import ModelEndpoint, WaveEndpoint
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory

RunEpisode = Callable[[WorkflowTask, "Slot"], Coroutine[Any, Any, Trajectory]]


class Slot:
    """The right of one episode to run. It is given back when the episode's workflow is over; the
    episode may still be judged afterwards."""

    def __init__(
        self,
        episode_id: str,
        endpoint: ModelEndpoint | None = None,
        on_free: Callable[[], None] | None = None,
    ) -> None:
        self.episode_id = episode_id
        self._endpoint = endpoint
        self._on_free = on_free
        self._on_workflow_end: Callable[[EpisodeStatus], None] | None = None
        self.is_free = False

    def set_workflow_end_callback(self, callback: Callable[[EpisodeStatus], None]) -> None:
        """Sets a function to call when the workflow is over, before the slot is given back."""
        self._on_workflow_end = callback

    def renew(self, episode_id: str) -> None:
        """Keeps the slot for another attempt at the episode, which has another id."""
        if self._endpoint is not None:
            # Enter before leaving: an endpoint must not start a wave in between.
            self._endpoint.enter(episode_id)
            self._endpoint.leave(self.episode_id)
        self.episode_id = episode_id

    def workflow_ended(self, status: EpisodeStatus) -> None:
        """Reports that the workflow is over, with its status so far, and gives the slot back."""
        if self._on_workflow_end is not None:
            self._on_workflow_end(status)
        self.free()

    def free(self) -> None:
        """Gives the slot back. Further calls have no effect."""
        if self.is_free:
            return
        self.is_free = True
        if self._on_free is not None:
            self._on_free()
        # The next episode has entered by now: an endpoint must not start a wave without it.
        if self._endpoint is not None:
            self._endpoint.leave(self.episode_id)


class Admission:
    """Holds the slots of one runner and the episodes that wait for them."""

    def __init__(self, num_slots: int, endpoint: ModelEndpoint | None = None) -> None:
        self.endpoint = endpoint
        self.on_free_slot: Callable[[], None] = lambda: None  # called when a slot comes free
        self._num_free = num_slots
        self._waiting: deque[AdmittedEpisodes] = deque()

    @property
    def free_slots(self) -> int:
        """Returns the number of free slots, minus the number of waiting episodes."""
        return self._num_free - sum(episodes.num_waiting for episodes in self._waiting)

    @property
    def waves(self) -> WaveEndpoint | None:
        """Returns the endpoint if it computes in waves, else None."""
        return None if self.endpoint is None else self.endpoint.waves

    def admit(self, episodes: AdmittedEpisodes | None = None) -> None:
        """Appends `episodes` to the waiting ones, and starts as many as there are free slots."""
        if episodes is not None:
            self._waiting.append(episodes)
        starting: list[tuple[AdmittedEpisodes, int]] = []
        while self._waiting and len(starting) < self._num_free:
            if (index := self._waiting[0].next_waiting()) is None:
                self._waiting.popleft()
            else:
                starting.append((self._waiting[0], index))
        self._num_free -= len(starting)
        # All of them enter the endpoint before the first one runs and could complete a wave.
        for admitted, index in starting:
            admitted.slots[index] = Slot(
                admitted.plans[index].episode_id, self.endpoint, self._slot_freed
            )
            if self.endpoint is not None:
                self.endpoint.enter(admitted.plans[index].episode_id)
        for admitted, index in starting:
            admitted.tasks[index] = asyncio.create_task(
                admitted.run(admitted.plans[index], admitted.slots[index])
            )
            admitted.tasks[index].add_done_callback(partial(admitted.ended, index))

    def _slot_freed(self) -> None:
        self._num_free += 1
        self.admit()
        self.on_free_slot()


class AdmittedEpisodes:
    """The episodes of one rollout. Each plan runs once, unless it is stopped or dropped first."""

    def __init__(self, plans: Sequence[WorkflowTask], run: RunEpisode) -> None:
        self.plans = plans
        self.run = run
        self.slots: dict[int, Slot] = {}
        self.tasks: dict[int, asyncio.Task[Trajectory]] = {}
        self._results: dict[int, Trajectory] = {}
        self._waiting = dict.fromkeys(range(len(plans)))  # a dict as an ordered set
        self._dropped: set[int] = set()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def num_waiting(self) -> int:
        """Returns the number of plans that have not started yet."""
        return len(self._waiting)

    def next_waiting(self) -> int | None:
        """Removes the first waiting plan and returns its index, or None."""
        index = next(iter(self._waiting), None)
        if index is not None:
            del self._waiting[index]
        return index

    @property
    def is_dropping(self) -> bool:
        """Tells whether a dropped episode still has its slot."""
        return any(not self.slots[index].is_free for index in self._dropped & self.slots.keys())

    def drop(self, indices: Iterable[int]) -> None:
        """Cancels these episodes, or does not start them. Those whose workflow is over are still
        judged."""
        for index in set(indices) - self._dropped:
            self._dropped.add(index)
            self._waiting.pop(index, None)
            if index in self.tasks and not self.slots[index].is_free:
                self.tasks[index].cancel()
        self._changed.set()

    def stop(self) -> None:
        """Starts no more episodes and cancels those that run."""
        self._waiting.clear()
        for task in self.tasks.values():
            task.cancel()
        self._changed.set()

    async def results(self) -> list[Trajectory | None]:
        """Waits until no episode runs or waits, and returns the trajectories in the order of the
        plans, with None for episodes that did not start. An exception of an episode ends the others
        and is raised here."""
        try:
            while self._failure is None and (self.tasks or self._waiting):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.stop()
            while self.tasks:
                await asyncio.wait(set(self.tasks.values()))
        if self._failure is not None:
            raise self._failure
        return [self._results.get(index) for index in range(len(self.plans))]

    def ended(self, index: int, task: asyncio.Task[Trajectory]) -> None:
        """Stores the result of an episode whose task is done, and gives its slot back."""
        del self.tasks[index]
        if task.cancelled():
            pass  # before its first line; later, the attempt returns an aborted trajectory
        elif (error := task.exception()) is not None:
            self._failure = self._failure or error
        else:
            self._results[index] = task.result()
        self.slots[index].free()
        self._changed.set()
