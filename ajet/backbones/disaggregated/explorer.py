"""The explorer of an asynchronous run: begins groups as far ahead as the staleness bound allows,
and puts them into the buffer as they end.

    plan 0  1  2 │ 3  4  5 │ …       one task each, in the order of the data
         └─ runs ─> judged ─> buffer

A group is identified by its plan index, which is made of its step and its number there. In whatever
order groups end, a plan index has the same task, ids and seeds, so a resumed run plans the same
groups again. With a bound of 0 the unit is the whole batch of a step, which begins when its weights
are published: the run is then that of backbone debug.

A group's end counts once it is stored: its result, where the order of tasks depends on results, and
whether it was left out. The explorer's state behind it is noted in the same transaction. A run that
resumes first adds the ends that the checkpoint lacks, from the buffer, in the order of the plan.

While weights change, episodes that run continue (`continue`; each token has its version), are
waited for (`finish`), or begin again (`recompute`; counted). A group without signal
(`dynamic_sampling`) is put into the buffer for the record, and another begins in its place, at most
`max_rounds - 1` times the groups of a step for each step.

Not covered: running the episodes (a `GroupRunner`), and when weights change (trainer.py).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from loguru import logger

from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.bounded_loop import is_being_cancelled
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
from ajet.core.rollout.admission import Admission
from ajet.core.rollout.batch import BatchRollout, BatchSettings, StepGroups, group_result
from ajet.core.rollout.failure import check_failure_rate, has_failed
from ajet.core.rollout.request import group_id_of, step_of_group
from ajet.core.task.cursor import DataCursor
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.task.workflow_task import Mode
from ajet.core.trajectory.trajectory import SelectionName, Trajectory

PLAN = "plan"
"""The name of the note that is written whenever groups begin: the explorer's state, from which
another explorer process can continue."""


@dataclass(frozen=True, slots=True)
class ExplorerSettings:
    """`max_failure_rate` is the share of the episodes of one step that may fail."""

    batch: BatchSettings
    total_steps: int
    max_failure_rate: float
    partial_rollout: PartialRollout = "continue"

    @classmethod
    def from_config(cls, config: AjetConfig, total_steps: int) -> Self:
        """Reads the settings from the config."""
        return cls(
            batch=BatchSettings.from_config(config),
            total_steps=total_steps,
            max_failure_rate=config.ajet.rollout.max_failure_rate,
            partial_rollout=config.trinity.partial_rollout,
        )

    @property
    def groups_per_step(self) -> int:
        """The number of groups that are planned for a step; oversampling trains some of them."""
        return self.batch.first_round


class Explorer:
    """Runs the groups of a run, ahead of the trainer; `run` returns when the trainer is done."""

    def __init__(
        self,
        batch: BatchRollout,
        admission: Admission,
        cursor: DataCursor | ResultCursor,
        buffer: GroupBuffer,
        versions: VersionState,
        settings: ExplorerSettings,
    ) -> None:
        """A group begins when `admission`, which admits the episodes of `batch`, has a free
        slot."""
        self._batch, self._admission, self._cursor, self._buffer = batch, admission, cursor, buffer
        self._versions, self.settings = versions, settings
        self._is_synchronous = buffer.bound.max_staleness == 0
        self._next = 0  # the number of planned groups; of planned steps where it is synchronous
        self._known_tasks: dict[int, int | None] = {}  # of groups that an earlier attempt has begun
        self._known_ends: dict[int, FinishedGroup] = {}  # of them, those that are ahead in the plan
        self._to_restart: list[InFlight] = []
        self._running: dict[int, asyncio.Task[StepGroups]] = {}
        self._task_indices: dict[int, int] = {}
        self._groups: set[asyncio.Task[None]] = set()
        self._noting = asyncio.Lock()  # held while the buffer gets the note of a state
        self._recomputed: set[int] = set()
        self._is_paused = False
        self._slot_freed = asyncio.Event()
        admission.on_free_slot = self._slot_freed.set
        self._ended_at_sync = 0
        self._failures: defaultdict[int, list[Trajectory]] = defaultdict(list)
        self._cursor_before_batch: dict[str, Any] | None = None
        self.counts: Counter[str] = Counter()

    # State for checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Returns the position in the plan, and the groups that run: they begin again in a run that
        resumes. `unseen` are the planned groups whose results the cursor does not have."""
        return {
            "next": self._next,
            "cursor": self._cursor_before_batch or self._cursor.state_dict(),
            "in_flight": sorted(self._task_indices.items()),
            "aside": self.counts["left_out"],
            "unseen": self._unseen(),
        }

    def _unseen(self) -> list[int]:
        return sorted({*self._task_indices, *(each.index for each in self._to_restart)})

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Continues from a checkpoint, or from the beginning where `state` is None, with the groups
        that the buffer holds beyond it."""
        if state is not None:
            self._next = state["next"]
            self._cursor.load_state_dict(state["cursor"])
            self.counts["left_out"] = state["aside"]
        self._to_restart = self._buffer.in_flight()
        self._known_tasks = self._buffer.known_tasks()
        for index, task in state["in_flight"] if state is not None else ():
            if index not in self._known_tasks:
                self._to_restart.append(InFlight(index, task, self._versions.trained))
        self._to_restart.sort(key=lambda each: each.index)
        self._known_tasks |= {each.index: each.task_index for each in self._to_restart}
        if not self._is_synchronous:
            self._observe_known(() if state is None else state.get("unseen", ()))
            self._skip_known()

    def _observe_known(self, unseen: Collection[int]) -> None:
        """Counts how groups ended that the buffer holds: those in `unseen` at once, and those that
        are ahead in the plan when the plan moves behind them."""
        ahead = [index for index in self._known_tasks if index >= self._next_index]
        for item in self._buffer.finished([*unseen, *ahead]):
            if item.index < self._next_index:
                self._count_end(item)
            else:
                self._known_ends[item.index] = item

    def _count_end(self, item: FinishedGroup) -> None:
        task = self._known_tasks[item.index]
        if task is not None:  # else put without `begin`, with a bound of 0
            self._cursor.observe([group_result(task, item.group)])
        self.counts["left_out"] += not item.is_counted

    def is_open(self, group_id: str) -> bool:
        """Says whether the group, or the baseline, runs or is to begin again."""
        if self._is_synchronous:
            return step_of_group(group_id) > self._next
        indices = (*self._task_indices, *(each.index for each in self._to_restart))
        planned = [step_and_number(index) for index in indices]
        modes: tuple[Mode, ...] = ("train", "baseline")
        return any(group_id == group_id_of(step, mode, n) for step, n in planned for mode in modes)

    def _plan_note(self, **changed: Any) -> dict[str, str]:
        """Returns the state as a note. The groups that run are not in it: the buffer knows them."""
        to_restart = [(each.index, each.task_index) for each in self._to_restart]
        return {PLAN: json.dumps(self.state_dict() | {"in_flight": to_restart} | changed)}

    # The loop.

    async def run(self) -> None:
        """Runs groups until the trainer needs no more."""
        try:
            await (self._run_batches() if self._is_synchronous else self._run_groups())
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
        """Says whether the batch for this version is in the buffer, or was. The data cursor is
        moved behind a batch that an earlier attempt finished."""
        if self._next > version:
            return True
        cursor = self._buffer.read_note(batch_note(version + 1))
        if cursor is None or plan_index(version + 1, 0) not in self._known_tasks:
            return False
        self._cursor.load_state_dict(json.loads(cursor))
        self._next = version + 1
        return True

    async def _explore_step(self, step: int, version: int) -> None:
        self._cursor_before_batch = self._cursor.state_dict()
        rollout = await self._batch.rollout_step(step)
        self._cursor_before_batch = None
        notes = {batch_note(step): json.dumps(self._cursor.state_dict())}
        notes |= self._plan_note(next=step)
        items, last_step = _items(rollout), self.settings.total_steps
        await asyncio.to_thread(self._buffer.put, items, version, last_step=last_step, **notes)
        self._next = step
        self._versions.notify()

    async def _run_groups(self) -> None:
        while not self._versions.is_over:
            changed = self._versions.changed
            self._raise_failures()
            async with self._noting:
                may_begin = self._versions.published is not None and not self._is_paused
                if may_begin and not self._versions.is_over:
                    self._begin(self._capacity_left())
            self._slot_freed.clear()
            await _any_of({changed, self._slot_freed}, self._groups)

    def _capacity_left(self) -> int:
        """Returns how many groups may begin: enough to fill the free slots, the last of them
        perhaps in part. Groups of an earlier attempt are within the bound already."""
        # The buffer is read on the event loop, so that no step of the trainer comes in between.
        published = self._versions.published
        assert published is not None
        free = math.ceil(max(0, self._admission.free_slots) / self.settings.batch.group_size)
        if self._to_restart:
            return min(free, len(self._to_restart))
        return min(free, self._buffer.capacity_left(published, self.settings.total_steps))

    def _begin(self, number: int) -> None:
        version = self._versions.published
        assert version is not None
        if not number:
            return
        begun = [self._next_group(version) for _ in range(number)]
        self._task_indices |= {each.index: each.task_index for each in begun}
        self._buffer.begin(begun, **self._plan_note())
        for each in begun:
            self._groups.add(asyncio.create_task(self._group(each.index, each.task_index, version)))
            self.counts["begun"] += 1

    def _next_group(self, version: int) -> InFlight:
        """Returns the next group to begin: one to restart, or one that is not known yet."""
        if self._to_restart:
            # Some of its episodes may have ended before: their tokens have the earlier version.
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
        """Moves the plan behind the groups of an earlier attempt. It is done at once: when such
        groups are trained the buffer forgets them, and a checkpoint that still had them before it
        would have them planned again."""
        while (index := self._next_index) in self._known_tasks:
            self._cursor.skip(self._known_tasks[index])
            if index in self._known_ends:
                self._count_end(self._known_ends.pop(index))
            self._next += 1

    async def _group(self, index: int, task: int, version: int) -> None:
        """Runs one group and puts it into the buffer; begins it again whenever `pause` has ended it
        for new weights."""
        step, number = step_and_number(index)
        while True:
            running = asyncio.create_task(self._batch.rollout_group(step, number, task))
            self._running[index] = running
            try:
                rollout = await running
                break
            except asyncio.CancelledError:
                if index not in self._recomputed or is_being_cancelled():
                    running.cancel()
                    raise
            self._recomputed.discard(index)
            version = await self._restart(index, task)
        del self._running[index]
        self._recomputed.discard(index)
        self._check_failures(step, rollout)
        (item,) = _items(rollout)
        await self._store(item, task, version)

    async def _store(self, item: FinishedGroup, task: int, version: int) -> None:
        """Puts a group into the buffer, with the note of the state behind it."""
        result, last_step = group_result(task, item.group), self.settings.total_steps
        async with self._noting:  # another note of meanwhile would lack this end, or be lost
            stored = self._replace_if_no_signal(item)
            left_out = self.counts["left_out"] + (not stored.is_counted)
            behind = {"cursor": self._cursor.state_after(result), "aside": left_out}
            unseen = [each for each in self._unseen() if each != item.index]
            notes = self._plan_note(**behind, unseen=unseen)
            put = partial(self._buffer.put, [stored], version, last_step=last_step, **notes)
            if not await asyncio.to_thread(put):
                return  # the run has trained its last step: the group counts as one that still runs
            # In one moment: a checkpoint has the end, or the group among the unseen ones.
            self._cursor.observe([result])
            del self._task_indices[item.index]
            self.counts["left_out"] = left_out
            self.counts["ended"] += 1
        self._versions.notify()

    async def _restart(self, index: int, task: int) -> int:
        """Waits for the new weights and begins the group again; returns their version."""
        while self._is_paused:
            await self._versions.changed.wait()
        version = self._versions.published
        assert version is not None
        self._buffer.begin([InFlight(index, task, version)])
        self.counts["restarted"] += 1
        return version

    def _replace_if_no_signal(self, item: FinishedGroup) -> FinishedGroup:
        """Returns a group without signal as one that is not counted, so that another group begins
        for it, as long as the step may have more rounds."""
        rounds, members = self.settings.batch.max_rounds, item.group.trajectories
        allowed = (rounds - 1) * self.settings.groups_per_step * (self._versions.trained + 1)
        has_signal = item.group.valid or all(
            t.left_out is not SelectionName.DYNAMIC_SAMPLING for t in members
        )
        if has_signal or self.counts["left_out"] >= allowed:
            return item
        return FinishedGroup(item.index, item.group, item.baselines, is_counted=False)

    def _check_failures(self, step: int, rollout: StepGroups) -> None:
        """Raises RunFailed when too many episodes of one step have failed."""
        for over in [each for each in self._failures if each <= self._versions.trained]:
            del self._failures[over]
        failed = self._failures[step]
        failed += [t for group in rollout.all for t in group.trajectories if has_failed(t)]
        check_failure_rate(failed, self.settings.batch.num_episodes, self.settings.max_failure_rate)

    def _raise_failures(self) -> None:
        """Raises the error of a group that has failed."""
        for group in [group for group in self._groups if group.done()]:
            self._groups.discard(group)
            if not group.cancelled() and (error := group.exception()) is not None:
                raise error

    # While weights change.

    async def pause(self) -> None:
        """Is called before new weights: lets running groups continue, waits for them or ends them,
        as `partial_rollout` says."""
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
        """Is called after new weights, or when the engines could not take them."""
        self._is_paused = False
        self._ended_at_sync = self.counts["ended"]

    def wants_weights(self) -> bool:
        """Says whether as many groups have ended since the last weight sync as belong between two
        syncs."""
        ended = self.counts["ended"] - self._ended_at_sync
        return ended >= self._buffer.bound.sync_interval * self.settings.groups_per_step

    async def _stop(self) -> None:
        """Cancels the groups that still run."""
        for group in self._groups:
            group.cancel()
        if self._groups:
            logger.debug(f"{len(self._groups)} groups were still running")
            await asyncio.wait(self._groups)


def _items(rollout: StepGroups) -> list[FinishedGroup]:
    """Returns each group of a batch with the baseline of its task."""
    baselines = {group.number: group for group in rollout.baselines}
    found = []
    for group in rollout.groups:
        step = step_of_group(group.group_id)
        own = (baselines[group.number],) if group.number in baselines else ()
        found.append(FinishedGroup(plan_index(step, group.number), group, own))
    return found


async def _any_of(events: set[asyncio.Event], groups: set[asyncio.Task[None]]) -> None:
    """Returns when one of the events is set, or a group is done."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait({*waiting, *groups}, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
