"""The explorer of an asynchronous run: begins groups as far ahead as the staleness bound allows,
and puts them into the buffer as they end.

    plan 0  1  2 │ 3  4  5 │ …       a task each, in the order of the data; step and number name it
         └─ runs ─> judged ─> buffer

Whatever ends first, plan n has the same task, ids and seeds, so a resumed run plans the same again.
With a bound of 0 the unit is the whole batch of a step, begun when its weights are there: then
everything is as it is in one process.

While weights change, episodes that run go on (`continue`; their tokens know their versions), are
waited for (`finish`), or begin anew (`recompute`; counted). A group without signal
(`dynamic_sampling`) is put into the buffer for the record, and another begins in its place, at most
`max_rounds - 1` steps' worth of them for each step.

Not covered: who runs the episodes (a `RolloutRunner`), and when weights change (trainer.py).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loguru import logger

from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.buffer.buffer import Begun, Buffer, Item, batch_note, place_of, planned_at
from ajet.core.buffer.staleness import PartialRollout
from ajet.core.rollout.batch import BatchRollout, BatchSettings, StepGroups
from ajet.core.rollout.failure import check_failure_rate, has_failed
from ajet.core.rollout.request import RolloutRunner, group_id_of, step_of_group
from ajet.core.task.cursor import DataCursor
from ajet.core.task.workflow_task import Mode
from ajet.core.trajectory.trajectory import Trajectory

PLAN = "plan"
"""What the buffer is told with all that begins: the place in the plan, from which another explorer
could go on."""


@dataclass(frozen=True, slots=True)
class ExplorerSettings:
    """`max_failure_rate` is of the episodes of one step."""

    batch: BatchSettings
    total_steps: int
    max_failure_rate: float
    partial_rollout: PartialRollout = "continue"

    @property
    def groups_per_step(self) -> int:
        """That are planned; oversampling keeps some of them."""
        return self.batch.first_round


class Explorer:
    """`run` returns when there is nothing left to begin and nothing runs."""

    def __init__(
        self,
        batch: BatchRollout,
        runner: RolloutRunner,
        cursor: DataCursor,
        buffer: Buffer,
        versions: VersionState,
        settings: ExplorerSettings,
    ) -> None:
        """`runner` runs the episodes of `batch`; a group begins when it has a free slot."""
        self._batch, self._runner, self._cursor, self._buffer = batch, runner, cursor, buffer
        self._versions, self.settings = versions, settings
        self._is_whole = buffer.bound.max_staleness == 0
        self._next = 0  # plan, or step of a whole batch
        self._known: set[int] = set()  # places that an earlier attempt has finished or begun
        self._left: list[Begun] = []  # are to begin again
        self._running: dict[int, asyncio.Task[StepGroups]] = {}
        self._tasks: dict[int, int] = {}
        self._groups: set[asyncio.Task[None]] = set()
        self._renewed: set[int] = set()
        self._is_held = False
        self._slot_freed = asyncio.Event()
        runner.set_free_slot_callback(self._slot_freed.set)
        self._ended_then = 0
        self._failed: defaultdict[int, list[Trajectory]] = defaultdict(list)
        self._before_batch: dict[str, Any] | None = None
        self.counts: Counter[str] = Counter()

    # What a checkpoint keeps.

    def state_dict(self) -> dict[str, Any]:
        """The place in the plan, and the groups that run: they begin again on resuming."""
        return {
            "next": self._next,
            "cursor": self._before_batch or self._cursor.state_dict(),
            "in_flight": sorted(self._tasks.items()),
            "aside": self.counts["aside"],
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on from a checkpoint (None: from the beginning) with what the buffer has beyond it."""
        if state is not None:
            self._next = state["next"]
            self._cursor.load_state_dict(state["cursor"])
            self.counts["aside"] = state["aside"]
        self._left = self._buffer.in_flight()
        self._known = self._buffer.places()
        for place, task in state["in_flight"] if state is not None else ():
            if place not in self._known:
                self._left.append(Begun(place, task, self._versions.trained))
        self._left.sort(key=lambda each: each.place)
        self._known |= {each.place for each in self._left}

    def is_open(self, group_id: str) -> bool:
        """Whether the group, or baseline, is on its way into the buffer, or is to begin again."""
        if self._is_whole:
            return step_of_group(group_id) > self._next
        places = (*self._tasks, *(each.place for each in self._left))
        planned = [planned_at(place) for place in places]
        modes: tuple[Mode, ...] = ("train", "baseline")
        return any(group_id == group_id_of(step, mode, n) for step, n in planned for mode in modes)

    def _plan(self, **changed: int) -> dict[str, str]:
        """As a note: of the groups that run the buffer knows."""
        left = [(each.place, each.task) for each in self._left]
        return {PLAN: json.dumps(self.state_dict() | {"in_flight": left} | changed)}

    # The loop.

    async def run(self) -> None:
        """Explore until the last step's groups are there."""
        try:
            await (self._run_batches() if self._is_whole else self._run_groups())
        finally:
            await self._stop()

    async def _run_batches(self) -> None:
        while not self._versions.is_over:
            changed = self._versions.changed
            version = self._versions.published
            if version is None or version >= self.settings.total_steps or self._has_batch(version):
                await changed.wait()
                continue
            await self._explore_step(version + 1, version)

    def _has_batch(self, version: int) -> bool:
        """Whether the batch for this version is in the buffer, or was; one that an earlier attempt
        finished moves the cursor."""
        if self._next > version:
            return True
        told = self._buffer.told(batch_note(version + 1))
        if told is None or place_of(version + 1, 0) not in self._known:
            return False
        self._cursor.load_state_dict(json.loads(told))
        self._next = version + 1
        return True

    async def _explore_step(self, step: int, version: int) -> None:
        self._before_batch = self._cursor.state_dict()
        rollout = await self._batch.rollout_step(step)
        self._before_batch = None
        behind = {batch_note(step): json.dumps(self._cursor.state_dict())}
        told = behind | self._plan(next=step)
        await asyncio.to_thread(self._buffer.put, _items(rollout), version, **told)
        self._next = step
        self._versions.notify()

    async def _run_groups(self) -> None:
        while not self._versions.is_over:
            changed = self._versions.changed
            self._raise_failures()
            if self._versions.published is not None and not self._is_held:
                self._begin(self._room())
            self._slot_freed.clear()
            await _any_of({changed, self._slot_freed}, self._groups)

    def _room(self) -> int:
        """How many groups may begin: enough to fill the free slots, the last of them perhaps in
        part. Those of an earlier attempt have their place in the plan already. Asked on the event
        loop, where no step of the trainer can come in between."""
        published = self._versions.published
        assert published is not None
        free = math.ceil(max(0, self._runner.free_slots) / self.settings.batch.group_size)
        if self._left:
            return min(free, len(self._left))
        return min(free, self._buffer.room(published, self.settings.total_steps))

    def _begin(self, number: int) -> None:
        version = self._versions.published
        assert version is not None
        if not number:
            return
        begun = [self._next_plan(version) for _ in range(number)]
        self._buffer.begin(begun, **self._plan())
        for each in begun:
            self._tasks[each.place] = each.task
            self._groups.add(asyncio.create_task(self._group(each.place, each.task, version)))
            self.counts["begun"] += 1

    def _next_plan(self, version: int) -> Begun:
        """A place that is not known yet, and its task. A group that begins again may have members
        that ended before: it counts as begun when it was."""
        if self._left:
            again = self._left.pop(0)
            return Begun(again.place, again.task, min(version, again.version))
        while True:
            step, number = divmod(self._next, self.settings.groups_per_step)
            place = place_of(step + 1, number)
            (task,) = self._cursor.next_batch(1)
            self._next += 1
            if place not in self._known:
                return Begun(place, task, version)

    async def _group(self, place: int, task: int, version: int) -> None:
        """One group, to its place in the buffer; anew as often as its weights are taken back."""
        step, number = planned_at(place)
        while True:
            running = asyncio.create_task(self._batch.rollout_group(step, number, task))
            self._running[place] = running
            try:
                rollout = await running
                break
            except asyncio.CancelledError:
                if place not in self._renewed or _is_cancelled():
                    running.cancel()
                    raise
            self._renewed.discard(place)
            version = await self._renewal(place, task)
        del self._running[place]
        self._renewed.discard(place)
        self._check_failures(step, rollout)
        (item,) = _items(rollout)
        await asyncio.to_thread(self._buffer.put, [self._counted(item)], version)
        del self._tasks[place]
        self.counts["ended"] += 1
        self._versions.notify()

    async def _renewal(self, place: int, task: int) -> int:
        """Waits for the new weights."""
        while self._is_held:
            await self._versions.changed.wait()
        version = self._versions.published
        assert version is not None
        self._buffer.begin([Begun(place, task, version)])
        self.counts["restarted"] += 1
        return version

    def _counted(self, item: Item) -> Item:
        """With another group to come in its place, where it says nothing."""
        aside = self._was_left_out(item)
        rounds = self.settings.batch.max_rounds
        allowed = (rounds - 1) * self.settings.groups_per_step * (self._versions.trained + 1)
        if not aside or self.counts["aside"] >= allowed:
            return item
        self.counts["aside"] += 1
        return Item(item.place, item.group, item.baselines, counts=False)

    def _was_left_out(self, item: Item) -> bool:
        members = item.group.trajectories
        return not item.group.valid and any(t.left_out == "dynamic_sampling" for t in members)

    def _check_failures(self, step: int, rollout: StepGroups) -> None:
        """A run stops when too many episodes of one step fail."""
        for over in [each for each in self._failed if each <= self._versions.trained]:
            del self._failed[over]
        failed = self._failed[step]
        failed += [t for group in rollout.all for t in group.trajectories if has_failed(t)]
        check_failure_rate(failed, self.settings.batch.num_episodes, self.settings.max_failure_rate)

    def _raise_failures(self) -> None:
        """What a group raised is the run's."""
        for group in [group for group in self._groups if group.done()]:
            self._groups.discard(group)
            if not group.cancelled() and (error := group.exception()) is not None:
                raise error

    # While weights change.

    async def hold(self) -> None:
        """Before new weights: what runs is left alone, waited for, or ended."""
        how = self.settings.partial_rollout
        if how == "continue":
            return
        self._is_held = True
        if how == "recompute":
            self._renewed |= set(self._running)
            for running in list(self._running.values()):
                running.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))

    def release(self) -> None:
        """After them."""
        self._is_held = False
        self._ended_then = self.counts["ended"]

    def asks(self) -> bool:
        """Whether it has played as much since the last weights as comes between two transfers."""
        ended = self.counts["ended"] - self._ended_then
        return ended >= self._buffer.bound.sync_interval * self.settings.groups_per_step

    async def _stop(self) -> None:
        """What still runs is not trained any more."""
        for group in self._groups:
            group.cancel()
        if self._groups:
            logger.debug(f"{len(self._groups)} groups were still running")
            await asyncio.wait(self._groups)


def _items(rollout: StepGroups) -> list[Item]:
    """Each group with its own baselines."""
    baselines = {group.number: group for group in rollout.baselines}
    found = []
    for group in rollout.groups:
        step = step_of_group(group.group_id)
        own = (baselines[group.number],) if group.number in baselines else ()
        found.append(Item(place_of(step, group.number), group, own))
    return found


def _is_cancelled() -> bool:
    """Whether the task that asks is to end, and not one that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _any_of(events: set[asyncio.Event], groups: set[asyncio.Task[None]]) -> None:
    """Until one of the events is set, or a group is over."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait({*waiting, *groups}, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
