"""Starts episodes in their order, at most `num_slots` at once, whichever ends first.

The endpoint is told which episodes are live (`enter`, `leave`), and the next episode enters before
the one that made room leaves. So an endpoint that computes in waves can never begin one without it,
and which requests are computed together does not depend on timing (docs/adr/0001-waves.md).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from ajet.core.inference.endpoint import ModelEndpoint, WaveEndpoint
from ajet.core.rollout.answered import AnsweredCall
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory

RunEpisode = Callable[[WorkflowTask, "Slot"], Coroutine[Any, Any, Trajectory]]


class Slot:
    """The right of one episode to run. It is given back when the episode's workflow is over; the
    episode may still be judged afterwards. `on_workflow_end` is called just before that. Where
    calls of the model are stored, `on_call` is called with each one that is answered, and
    `answered` are those of an earlier attempt of the run."""

    def __init__(
        self,
        episode_id: str,
        endpoint: ModelEndpoint | None = None,
        on_free: Callable[[], None] | None = None,
    ) -> None:
        self.episode_id = episode_id
        self._endpoint = endpoint
        self._on_free = on_free
        self.on_workflow_end: Callable[[EpisodeStatus], None] | None = None
        self.answered: Sequence[AnsweredCall] = ()
        self.on_call: Callable[[AnsweredCall], None] | None = None
        self.is_free = False

    def renew(self, episode_id: str) -> None:
        """Keeps the slot for another attempt at the episode, which has another id."""
        if self._endpoint is not None:
            # Enter before leaving: an endpoint must not start a wave in between.
            self._endpoint.enter(episode_id)
            self._endpoint.leave(self.episode_id)
        self.episode_id = episode_id

    def workflow_ended(self, status: EpisodeStatus) -> None:
        """Reports that the workflow is over, with its status so far, and gives the slot back."""
        if self.on_workflow_end is not None:
            self.on_workflow_end(status)
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
    """Holds the slots of one runner and the episodes that wait for them. Concurrent rollouts of
    the runner share its slots."""

    def __init__(self, num_slots: int, endpoint: ModelEndpoint | None = None) -> None:
        self.endpoint = endpoint
        self.on_free_slot: Callable[[], None] = lambda: None  # called when a slot comes free
        self._num_free = num_slots
        self._waiting: deque[AdmittedEpisodes] = deque()

    @property
    def free_slots(self) -> int:
        """Returns the number of free slots, minus the number of waiting episodes."""
        return self._num_free - sum(len(episodes.waiting) for episodes in self._waiting)

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
            first = self._waiting[0]
            if not first.waiting:
                self._waiting.popleft()
                continue
            index = next(iter(first.waiting))
            del first.waiting[index]
            starting.append((first, index))
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
        # Indices of the plans that have not started; a dict as an ordered set.
        self.waiting = dict.fromkeys(range(len(plans)))
        self._dropped: set[int] = set()
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()

    @property
    def is_dropping(self) -> bool:
        """Tells whether a dropped episode still has its slot."""
        return any(not self.slots[index].is_free for index in self._dropped & self.slots.keys())

    def drop(self, indices: Iterable[int]) -> None:
        """Cancels these episodes, or does not start them. Those whose workflow is over are still
        judged."""
        for index in set(indices) - self._dropped:
            self._dropped.add(index)
            self.waiting.pop(index, None)
            if index in self.tasks and not self.slots[index].is_free:
                self.tasks[index].cancel()
        self._changed.set()

    def stop(self) -> None:
        """Starts no more episodes and cancels those that run."""
        self.waiting.clear()
        for task in self.tasks.values():
            task.cancel()
        self._changed.set()

    async def results(self) -> list[Trajectory | None]:
        """Waits until no episode runs or waits, and returns the trajectories in the order of the
        plans, with None for episodes that did not start. An exception of an episode ends the others
        and is raised here."""
        try:
            while self._failure is None and (self.tasks or self.waiting):
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
