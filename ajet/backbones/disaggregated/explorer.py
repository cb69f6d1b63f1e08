"""The explorer of an asynchronous run: begins groups as far ahead as the staleness bound allows,
and puts them into the buffer as they end.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from loguru import logger

from ajet.core.buffer.buffer import (
    FinishedGroup,
    GroupBuffer,
    InFlight,
    batch_note,
    plan_index,
    step_and_number,
)
from ajet.core.buffer.staleness import PartialRollout
from ajet.core.config import AjetConfig
from ajet.core.process.bounded_loop import is_being_cancelled
from ajet.core.rollout.admission import Admission
from ajet.core.rollout.batch import BatchRollout, BatchSettings, StepGroups, group_result
from ajet.core.rollout.failure import check_failure_rate, has_failed
from ajet.core.rollout.request import group_id_of, step_of_group
from ajet.core.task.cursor import DataCursor
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.task.workflow_task import Mode
from ajet.core.trajectory.trajectory import SelectionName, Trajectory

PLAN = "plan"
"""The note, written whenever groups begin, of the explorer's state: another explorer process can
continue from it."""


class VersionState:
    """The versions that trainer and explorer of a run have reached, on one event loop: `trained` is
    the trainer's, `published` that of the explorer's weights. No episode begins before the first
    publication. Both wait for `changed`, look again, and wait again if there is nothing to do."""

    def __init__(self, version: int) -> None:
        self.trained = version
        self.published: int | None = None
        self.is_over = False
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """The event of the next change. Take it before reading the state, or a change in between is
        missed."""
        return self._changed

    def notify(self) -> None:
        """Wakes everyone waiting for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def publish(self, version: int) -> None:
        """Records that the explorer has the weights of this version."""
        self.published = version
        self.notify()

    def end(self) -> None:
        """Records that the trainer takes no more groups."""
        self.is_over = True
        self.notify()


@dataclass(frozen=True, slots=True)
class ExplorerSettings:
    """`max_failure_rate` is the fraction of a step's episodes that may fail."""

    batch: BatchSettings
    total_steps: int
    max_failure_rate: float
    partial_rollout: PartialRollout = "continue"

    @classmethod
    def from_config(cls, config: AjetConfig, total_steps: int) -> Self:
        return cls(
            batch=BatchSettings.from_config(config),
            total_steps=total_steps,
            max_failure_rate=config.ajet.rollout.max_failure_rate,
            partial_rollout=config.trinity.partial_rollout,
        )

    @property
    def groups_per_step(self) -> int:
        """The number of groups planned for a step; with oversampling only some are trained."""
        return self.batch.first_round


class Explorer:
    """Runs the groups of a run, ahead of the trainer; `run` returns when the trainer is done.

    A group's plan index consists of its step and its number in that step. Whatever the order in
    which groups end, a plan index has the same task, ids and seeds, so a resumed run plans the same
    groups. With a bound of 0 the unit is the whole batch of a step, which begins when its weights
    are published: the run is then that of backbone debug. A group's end counts once the buffer has
    stored it, together with the explorer's state after it, in one transaction; a resumed run first
    replays the ends that its checkpoint lacks."""

    def __init__(
        self,
        batch: BatchRollout,
        admission: Admission,
        cursor: DataCursor | ResultCursor,
        buffer: GroupBuffer,
        versions: VersionState,
        settings: ExplorerSettings,
    ) -> None:
        """`admission` must be the one that admits the episodes of `batch`: a group begins when it
        has a free slot."""
        self._batch, self._admission, self._cursor, self._buffer = batch, admission, cursor, buffer
        self._versions, self.settings = versions, settings
        self._is_synchronous = buffer.bound.max_staleness == 0
        # Number of planned groups (if synchronous: steps). All dicts below are keyed by plan index.
        self._next = 0
        # Groups that an earlier attempt began: their task, and those that ended beyond `_next`.
        self._known_tasks: dict[int, int | None] = {}
        self._known_ends: dict[int, FinishedGroup] = {}
        self._to_restart: list[InFlight] = []
        self._running: dict[int, asyncio.Task[StepGroups]] = {}
        # Tasks of groups that have begun and whose end is not stored.
        self._task_indices: dict[int, int] = {}
        self._groups: set[asyncio.Task[None]] = set()
        self._noting = asyncio.Lock()  # held while a note of the state is made and stored
        self._recomputed: set[int] = set()  # cancelled by `pause`, not by the run's end
        self._is_paused = False
        self._slot_freed = asyncio.Event()
        admission.on_free_slot = self._slot_freed.set
        self._ended_at_sync = 0
        self._failures: defaultdict[int, list[Trajectory]] = defaultdict(list)
        self._cursor_before_batch: dict[str, Any] | None = None
        self.counts: Counter[str] = Counter()

    # State for checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the plan, and the running groups, which a resumed run begins
        again. `unseen` are planned groups whose results the cursor has not observed."""
        return {
            "next": self._next,
            # A batch that runs is not in `next` yet, so its tasks must be drawn again.
            "cursor": self._cursor_before_batch or self._cursor.state_dict(),
            "in_flight": sorted(self._task_indices.items()),
            "aside": self.counts["left_out"],
            "unseen": self._unseen(),
        }

    def _unseen(self) -> list[int]:
        return sorted({*self._task_indices, *(group.index for group in self._to_restart)})

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continues from a checkpoint (None: from the beginning), with the groups that the buffer
        holds beyond it."""
        if state is not None:
            self._next = state["next"]
            self._cursor.load_state_dict(state["cursor"])
            self.counts["left_out"] = state["aside"]
        self._to_restart = self._buffer.in_flight()
        self._known_tasks = self._buffer.known_tasks()
        for index, task in state["in_flight"] if state is not None else ():
            if index not in self._known_tasks:
                self._to_restart.append(InFlight(index, task, self._versions.trained))
        self._to_restart.sort(key=lambda group: group.index)
        self._known_tasks |= {group.index: group.task_index for group in self._to_restart}
        if self._is_synchronous:
            return
        # Replays the ends of groups in the buffer that the checkpoint lacks: of those in `unseen`
        # at once, of later ones when the plan reaches them (`_skip_known`).
        unseen = () if state is None else state.get("unseen", ())
        ahead = [index for index in self._known_tasks if index >= self._next_index]
        for item in self._buffer.finished([*unseen, *ahead]):
            if item.index < self._next_index:
                self._count_end(item)
            else:
                self._known_ends[item.index] = item
        self._skip_known()

    def _count_end(self, item: FinishedGroup) -> None:
        task = self._known_tasks[item.index]
        if task is not None:  # None: stored without `begin`, with a bound of 0
            self._cursor.observe([group_result(task, item.group)])
        self.counts["left_out"] += not item.is_counted

    def is_open(self, group_id: str) -> bool:
        """Returns whether the group or baseline is running or will begin again."""
        if self._is_synchronous:
            return step_of_group(group_id) > self._next
        indices = (*self._task_indices, *(group.index for group in self._to_restart))
        planned = [step_and_number(index) for index in indices]
        modes: tuple[Mode, ...] = ("train", "baseline")
        return any(group_id == group_id_of(step, mode, n) for step, n in planned for mode in modes)

    def _plan_note(self, **changed: Any) -> dict[str, str]:
        """Returns the state as a note. Running groups are not in it: the buffer knows them."""
        to_restart = [(group.index, group.task_index) for group in self._to_restart]
        return {PLAN: json.dumps(self.state_dict() | {"in_flight": to_restart} | changed)}

    # The loop.

    async def run(self) -> None:
        """Runs groups until the trainer needs no more."""
        try:
            await (self._run_batches() if self._is_synchronous else self._run_groups())
        finally:
            for group in self._groups:
                group.cancel()
            if self._groups:
                logger.debug(f"{len(self._groups)} groups were still running")
                await asyncio.wait(self._groups)

    async def _run_batches(self) -> None:
        while not self._versions.is_over:
            changed = self._versions.changed
            version = self._versions.published
            if version is None or version >= self.settings.total_steps or self._has_batch(version):
                await changed.wait()
                continue
            step = version + 1
            self._cursor_before_batch = self._cursor.state_dict()
            rollout = await self._batch.rollout_step(step)
            self._cursor_before_batch = None
            notes = {batch_note(step): json.dumps(self._cursor.state_dict())}
            notes |= self._plan_note(next=step)
            items, last_step = _items(rollout), self.settings.total_steps
            await asyncio.to_thread(self._buffer.put, items, version, last_step=last_step, **notes)
            self._next = step
            self._versions.notify()

    def _has_batch(self, version: int) -> bool:
        """Returns whether the batch for this version is or was in the buffer. Moves the data cursor
        past a batch that an earlier attempt finished."""
        if self._next > version:
            return True
        cursor = self._buffer.read_note(batch_note(version + 1))
        if cursor is None or plan_index(version + 1, 0) not in self._known_tasks:
            return False
        self._cursor.load_state_dict(json.loads(cursor))
        self._next = version + 1
        return True

    async def _run_groups(self) -> None:
        while not self._versions.is_over:
            changed = self._versions.changed
            for group in [group for group in self._groups if group.done()]:
                self._groups.discard(group)
                if not group.cancelled() and (error := group.exception()) is not None:
                    raise error
            async with self._noting:
                may_begin = self._versions.published is not None and not self._is_paused
                if may_begin and not self._versions.is_over:
                    self._begin_groups()
            self._slot_freed.clear()
            events = [asyncio.create_task(e.wait()) for e in (changed, self._slot_freed)]
            await asyncio.wait({*events, *self._groups}, return_when=asyncio.FIRST_COMPLETED)
            for event in events:
                event.cancel()

    def _begin_groups(self) -> None:
        """Begins enough groups to fill the free slots, where the last one may have to wait for some
        of its slots."""
        # The buffer is read on the event loop, so that no step of the trainer comes in between.
        version = self._versions.published
        assert version is not None
        free = math.ceil(max(0, self._admission.free_slots) / self.settings.batch.group_size)
        if self._to_restart:  # an earlier attempt counted them against the staleness bound
            number = min(free, len(self._to_restart))
        else:
            number = min(free, self._buffer.capacity_left(version, self.settings.total_steps))
        if not number:
            return
        begun = [self._next_group(version) for _ in range(number)]
        self._task_indices |= {group.index: group.task_index for group in begun}
        self._buffer.begin(begun, **self._plan_note())
        for group in begun:
            run = self._group(group.index, group.task_index, version)
            self._groups.add(asyncio.create_task(run))
            self.counts["begun"] += 1

    def _next_group(self, version: int) -> InFlight:
        """Returns the next group to begin: one to restart, or a new one of the plan."""
        if self._to_restart:
            # Its journaled episodes are not run again: their tokens have the earlier version.
            again = self._to_restart.pop(0)
            return InFlight(again.index, again.task_index, min(version, again.version))
        index = self._next_index
        (task,) = self._cursor.next_batch(1)
        self._next += 1
        self._skip_known()
        return InFlight(index, task, version)

    @property
    def _next_index(self) -> int:
        step, number = divmod(self._next, self.settings.groups_per_step)
        return plan_index(step + 1, number)

    def _skip_known(self) -> None:
        """Moves the plan past groups of an earlier attempt. This must not be put off: the buffer
        forgets groups once they are trained, and a resume from a checkpoint that still had them
        ahead would plan them again."""
        while (index := self._next_index) in self._known_tasks:
            self._cursor.skip(self._known_tasks[index])
            if index in self._known_ends:
                self._count_end(self._known_ends.pop(index))
            self._next += 1

    async def _group(self, index: int, task: int, version: int) -> None:
        """Runs one group and stores it; begins it again whenever `pause` has cancelled it for new
        weights."""
        step, number = step_and_number(index)
        while True:
            running = asyncio.create_task(self._batch.rollout_group(step, number, task))
            self._running[index] = running
            try:
                rollout = await running
                break
            except asyncio.CancelledError:
                # Either `pause` has cancelled `running`, or someone cancels this task.
                if index not in self._recomputed or is_being_cancelled():
                    running.cancel()
                    raise
            self._recomputed.discard(index)
            while self._is_paused:  # until the new weights are there
                await self._versions.changed.wait()
            published = self._versions.published
            assert published is not None
            version = published
            self._buffer.begin([InFlight(index, task, version)])
            self.counts["restarted"] += 1
        del self._running[index]
        self._recomputed.discard(index)  # it may have ended just before it was cancelled
        self._check_failures(step, rollout)
        (item,) = _items(rollout)
        await self._store(item, task, version)

    async def _store(self, item: FinishedGroup, task: int, version: int) -> None:
        """Puts a group into the buffer, with a note of the state after it."""
        result, last_step = group_result(task, item.group), self.settings.total_steps
        async with self._noting:  # a note made meanwhile would lack this end, or be overwritten
            stored = self._replace_if_no_signal(item)
            left_out = self.counts["left_out"] + (not stored.is_counted)
            behind = {"cursor": self._cursor.state_after(result), "aside": left_out}
            unseen = [index for index in self._unseen() if index != item.index]
            notes = self._plan_note(**behind, unseen=unseen)
            put = partial(self._buffer.put, [stored], version, last_step=last_step, **notes)
            if not await asyncio.to_thread(put):
                return  # the run has trained its last step: the group counts as still running
            # No `await` from here: a checkpoint has either this end or the group in `unseen`.
            self._cursor.observe([result])
            del self._task_indices[item.index]
            self.counts["left_out"] = left_out
            self.counts["ended"] += 1
        self._versions.notify()

    def _replace_if_no_signal(self, item: FinishedGroup) -> FinishedGroup:
        """Returns a group without signal (dynamic sampling) as an uncounted one, which another
        group replaces, as long as the steps may have more rounds."""
        rounds, members = self.settings.batch.max_rounds, item.group.trajectories
        # Rounds belong to a step there; here groups of steps overlap, so their sum is bounded.
        allowed = (rounds - 1) * self.settings.groups_per_step * (self._versions.trained + 1)
        has_signal = item.group.valid or all(
            t.left_out is not SelectionName.DYNAMIC_SAMPLING for t in members
        )
        if has_signal or self.counts["left_out"] >= allowed:
            return item
        return FinishedGroup(item.index, item.group, item.baselines, is_counted=False)

    def _check_failures(self, step: int, rollout: StepGroups) -> None:
        """Raises RunFailed if too many episodes of this step have failed."""
        for past_step in [past for past in self._failures if past <= self._versions.trained]:
            del self._failures[past_step]
        failed = self._failures[step]
        failed += [t for group in rollout.all for t in group.trajectories if has_failed(t)]
        check_failure_rate(failed, self.settings.batch.num_episodes, self.settings.max_failure_rate)

    # While weights change.

    async def pause(self) -> None:
        """Is called before new weights. As `partial_rollout` says, running groups continue (each
        token has its version), are waited for (`finish`), or begin again (`recompute`)."""
        mode = self.settings.partial_rollout
        if mode == "continue":
            return
        self._is_paused = True
        if mode == "recompute":
            self._recomputed |= set(self._running)
            for running in list(self._running.values()):
                running.cancel()
        if self._running:
            await asyncio.wait(list(self._running.values()))

    def resume(self) -> None:
        """Is called after new weights, also if the engines failed to load them."""
        self._is_paused = False
        self._ended_at_sync = self.counts["ended"]

    def wants_weights(self) -> bool:
        """Returns whether an interval's number of groups has ended since the last weight sync."""
        ended = self.counts["ended"] - self._ended_at_sync
        return ended >= self._buffer.bound.sync_interval * self.settings.groups_per_step


def _items(rollout: StepGroups) -> list[FinishedGroup]:
    """Returns the groups of a batch with the baselines of their tasks."""
    baselines = {group.number: group for group in rollout.baselines}
    items = []
    for group in rollout.groups:
        step = step_of_group(group.group_id)
        baseline = (baselines[group.number],) if group.number in baselines else ()
        items.append(FinishedGroup(plan_index(step, group.number), group, baseline))
    return items
