"""The explorer alone, over a buffer in memory and a runner that is made by hand."""

import asyncio
import json
import time

import pytest

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings, VersionState
from ajet.core.buffer.buffer import MEMORY, FinishedGroup, GroupBuffer, InFlight, plan_index
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.process.bounded_loop import first_of
from ajet.core.rollout.batch import BatchSettings, StepGroups, without_signal
from ajet.core.task.cursor import DataCursor
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.task.results import GroupResult
from tests.core.buffer.group_makers import group


class Endless:
    """Groups that do not end by themselves, and take a moment to end when they are told to; a
    runner with room for eight episodes."""

    free_slots = 8

    async def rollout_group(self, step, number, task):
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.2)


def explorer_over(buffer, versions, how="continue", cursor=None):
    settings = ExplorerSettings(BatchSettings(2, 2), 9, 0.5, how)
    endless, cursor = Endless(), cursor or DataCursor(100, 2, seed=1)
    return Explorer(endless, endless, cursor, buffer, versions, settings)


async def test_a_run_that_is_ended_while_groups_are_paused_ends():
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(1, 2, 1, 2)), VersionState(0)
    buffer.reopen(0)
    explorer = explorer_over(buffer, versions, "recompute")

    async def new_weights():
        versions.publish(0)
        await asyncio.sleep(0.1)
        await explorer.pause()
        pytest.fail("they take longer to end")

    running = asyncio.create_task(first_of(new_weights(), explorer.run()))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)


async def test_a_group_that_begins_again_counts_as_begun_when_it_was():
    """Members that had ended may be of the weights of then: a trainer waits for it in time."""
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(1, 2, 1, 2)), VersionState(0)
    buffer.reopen(0)
    buffer.begin([InFlight(plan_index(1, 0), 7, 0), InFlight(plan_index(1, 1), 8, 3)])
    explorer = explorer_over(buffer, versions)
    explorer.load_state_dict(None)
    versions.trained = 1
    versions.publish(1)
    running = asyncio.create_task(explorer.run())

    def begun_with():
        return {each.index: each.version for each in buffer.in_flight()}

    async with asyncio.timeout(20):
        while begun_with()[plan_index(1, 1)] != 1:  # it was begun with weights that are lost
            await asyncio.sleep(0.01)
    assert begun_with()[plan_index(1, 0)] == 0  # as it was
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_checkpoint_is_behind_the_groups_of_an_earlier_attempt():
    """Once they are trained the buffer forgets them, and nothing else would keep them from being
    planned again."""
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(1, 2, 1, 2)), VersionState(0)
    buffer.reopen(0)
    known = (plan_index(1, 0), plan_index(1, 1), plan_index(2, 1))
    buffer.begin([InFlight(index, 7, 0) for index in known])
    explorer = explorer_over(buffer, versions)
    explorer.load_state_dict(None)
    assert explorer.state_dict()["next"] == 2
    assert [explorer._next_group(0).index for _ in range(5)] == [
        *known,
        plan_index(2, 0),
        plan_index(3, 0),
    ]
    assert explorer.state_dict()["next"] == 5


class FewestFirst:
    """Chooses the tasks that were taken least."""

    def choose(self, log, size):
        return sorted(range(len(log.of_task)), key=lambda task: log.of_task[task].taken)[:size]


async def test_an_order_by_results_counts_the_tasks_that_groups_of_an_earlier_attempt_had():
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(1, 2, 1, 2)), VersionState(0)
    buffer.reopen(0)
    buffer.begin([InFlight(plan_index(1, 0), 2, 0), InFlight(plan_index(1, 1), 0, 0)])
    cursor = ResultCursor(3, 2, seed=1, sampler=FewestFirst())
    explorer = explorer_over(buffer, versions, cursor=cursor)
    explorer.load_state_dict(None)
    assert [explorer._next_group(0).task_index for _ in range(3)] == [2, 0, 1]


def known(cursor):
    """Of each task: whether its group is waited for, its groups, episodes and successes."""
    stored = cursor.state_dict()["results"]["tasks"].items()
    return {int(task): (waits, *of) for task, (_, _, waits, *of) in stored}


def ended(step, number, rewards=(1.0, 0.0)):
    """A group that has ended, as a selection of groups with signal leaves it."""
    made = without_signal(group(number, step=step, rewards=rewards))
    return FinishedGroup(plan_index(step, number), made)


async def test_a_curriculum_that_resumes_knows_each_result_of_the_buffer_once():
    """Of a plan of eight groups over the tasks 0 to 7, the checkpoint is behind the first four. It
    has the result of group 0. Group 1 ended since, without signal; 2 and 3 run. Of the later ones
    4 has ended, 5 runs."""
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(3, 2, 1, 6)), VersionState(0)
    buffer.reopen(0)
    at = [plan_index(1 + number // 2, number % 2) for number in range(8)]
    cursor = ResultCursor(8, 2, seed=1, sampler=FewestFirst())
    first = explorer_over(buffer, versions, cursor=cursor)
    for task in range(4):
        assert first._next_group(0).task_index == task
        first._task_indices[at[task]] = task
    buffer.begin([InFlight(index, task, 0) for task, index in enumerate(at[:6])])
    buffer.put([ended(1, 0)], 0)
    cursor.observe([GroupResult(0, 2, 1, True)])
    del first._task_indices[at[0]]
    checkpoint = json.loads(json.dumps(first.state_dict()))
    assert checkpoint["unseen"] == at[1:4]
    buffer.put([ended(1, 1, (1.0, 1.0)), ended(3, 0, (0.0, 0.0))], 0)

    for _ in range(2):  # the second time after a kill that came at once
        resumed = ResultCursor(8, 2, seed=1, sampler=FewestFirst())
        explorer = explorer_over(buffer, versions, cursor=resumed)
        explorer.load_state_dict(checkpoint)
        has_signal, blank = 0, 1
        assert known(resumed) == {
            0: (False, 1, has_signal, 2.0, 1.0),
            1: (False, 1, blank, 2.0, 2.0),
            2: (True, 0, 0, 0.0, 0.0),
            3: (True, 0, 0, 0.0, 0.0),
            4: (False, 1, blank, 2.0, 0.0),
            5: (True, 0, 0, 0.0, 0.0),
        }
        assert explorer.state_dict()["unseen"] == [at[2], at[3], at[5]]
    again = ResultCursor(8, 2, seed=1, sampler=FewestFirst())
    explorer_over(buffer, versions, cursor=again).load_state_dict(explorer.state_dict())
    assert known(again) == known(resumed)


def explorer_by_results(episodes, total_steps):
    """Three tasks, the fewest results first; a step trains one group, and one may run ahead."""
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(1, 1, 1, 1)), VersionState(0)
    buffer.reopen(0)
    cursor = ResultCursor(3, 1, seed=1, sampler=FewestFirst())
    settings = ExplorerSettings(BatchSettings(1, 2), total_steps, 0.5)
    versions.publish(0)
    return buffer, cursor, Explorer(episodes, episodes, cursor, buffer, versions, settings)


class EndsAtOnce(Endless):
    async def rollout_group(self, step, number, task):
        return StepGroups([group(number, step=step)], [], 1.0)


async def test_a_result_is_noted_for_a_checkpoint_of_another_process():
    """The trainer's command knows the explorer by the note that it wrote last."""
    buffer, cursor, explorer = explorer_by_results(EndsAtOnce(), total_steps=9)
    running = asyncio.create_task(explorer.run())
    async with asyncio.timeout(20):
        while explorer.counts["ended"] < 2:  # one for step 1, and one ahead
            await asyncio.sleep(0.01)
    noted = json.loads(buffer.read_note("plan"))
    assert noted["unseen"] == [] and noted["cursor"] == cursor.state_dict()
    assert known(cursor) == {task: (False, 1, 0, 2.0, 1.0) for task in (0, 1)}
    running.cancel()
    await asyncio.wait([running])


class Killed(Exception):
    """Stands for a SIGKILL: nothing after it is done."""


class DiesOnceItHasStored(GroupBuffer):
    """The database of a process that ends there: nothing is written to it by what still runs."""

    is_dead = False

    def begin(self, *args, **more):
        if self.is_dead:
            raise Killed
        super().begin(*args, **more)

    def put(self, *args, **more):
        if not self.is_dead:
            super().put(*args, **more)
        self.is_dead = True
        raise Killed


async def test_a_result_is_known_though_the_explorer_dies_at_once_and_its_group_is_forgotten():
    """It is away until the group is trained, and no checkpoint needs it."""
    buffer, versions = DiesOnceItHasStored(MEMORY, StalenessBound(1, 1, 1, 1)), VersionState(0)
    buffer.reopen(0)
    cursor = ResultCursor(3, 1, seed=1, sampler=FewestFirst())
    settings = ExplorerSettings(BatchSettings(1, 2), 9, 0.5)
    episodes = EndsAtOnce()
    versions.publish(0)
    with pytest.raises(Killed):
        await Explorer(episodes, episodes, cursor, buffer, versions, settings).run()
    buffer.take(0, 1)
    buffer.mark_trained(1)
    buffer.prune(1)
    resumed = ResultCursor(3, 1, seed=1, sampler=FewestFirst())
    again = Explorer(episodes, episodes, resumed, buffer, versions, settings)
    again.load_state_dict(json.loads(buffer.read_note("plan")))
    assert known(resumed)[0] == (False, 1, 0, 2.0, 1.0)


class NotesItsPlans(GroupBuffer):
    """A database that takes its time to store a group."""

    noted: list[int]

    def begin(self, groups, **notes):
        super().begin(groups, **notes)
        self.noted.append(json.loads(notes["plan"])["next"])

    def put(self, items, version, **more):
        time.sleep(0.05)
        stored = super().put(items, version, **more)
        self.noted.append(json.loads(more["plan"])["next"])
        return stored


async def test_no_note_of_an_end_takes_back_what_was_planned_meanwhile():
    buffer, versions = NotesItsPlans(MEMORY, StalenessBound(3, 2, 1, 6)), VersionState(0)
    buffer.noted = []
    buffer.reopen(0)
    episodes, cursor = EndsAtOnce(), DataCursor(100, 2, seed=1)
    episodes.free_slots = 2
    settings = ExplorerSettings(BatchSettings(2, 2), 9, 0.5)
    explorer = Explorer(episodes, episodes, cursor, buffer, versions, settings)
    versions.publish(0)
    running = asyncio.create_task(explorer.run())
    async with asyncio.timeout(20):
        while explorer.counts["ended"] < 6:
            await asyncio.sleep(0.01)
            explorer._slot_freed.set()
    assert len(buffer.noted) >= 12 and buffer.noted == sorted(buffer.noted)
    running.cancel()
    await asyncio.wait([running])


async def test_groups_that_were_left_out_since_the_checkpoint_are_counted_once():
    """Of six planned groups the checkpoint is behind the first three, of which it knows that 0 was
    left out. Since then 1 and, ahead in the plan, 3 and 5 were left out, and 2 was not; 4 was not
    begun."""
    buffer, versions = GroupBuffer(MEMORY, StalenessBound(3, 2, 1, 6)), VersionState(0)
    buffer.reopen(0)
    at = [plan_index(1 + number // 2, number % 2) for number in range(6)]
    first = explorer_over(buffer, versions)
    tasks = [first._next_group(0).task_index for _ in range(3)]
    first._task_indices = {at[1]: tasks[1], at[2]: tasks[2]}
    first.counts["left_out"] = 1
    checkpoint = json.loads(json.dumps(first.state_dict()))
    begun = [InFlight(at[number], number, 0) for number in (0, 1, 2, 3, 5)]
    buffer.begin(begun)
    blank = [FinishedGroup(at[n], group(n % 2, step=1 + n // 2), (), False) for n in (0, 1, 3, 5)]
    buffer.put([*blank, ended(2, 0)], 0)
    explorer = explorer_over(buffer, versions)
    explorer.load_state_dict(checkpoint)
    assert explorer.counts["left_out"] == 3  # 0, 1 and 3: the plan is not behind 5
    again = explorer_over(buffer, versions)
    again.load_state_dict(explorer.state_dict())
    assert again.counts["left_out"] == 3
    again._next_group(0)  # 4, behind which the plan finds 5
    assert again.counts["left_out"] == 4


async def test_a_group_that_ends_after_the_last_update_counts_as_one_that_runs():
    may_end = asyncio.Event()

    class EndsWhenAllowed(Endless):
        async def rollout_group(self, step, number, task):
            await may_end.wait()
            return StepGroups([group(number, step=step)], [], 1.0)

    buffer, cursor, explorer = explorer_by_results(EndsWhenAllowed(), total_steps=1)
    running = asyncio.create_task(explorer.run())
    await asyncio.sleep(0.1)
    assert buffer.mark_trained(1, is_last=True) == []
    may_end.set()
    await asyncio.sleep(0.2)
    assert buffer.counts() == {"begun": 1} and explorer.counts["ended"] == 0
    assert explorer.state_dict()["unseen"] == [plan_index(1, 0)]
    assert known(cursor) == {0: (True, 0, 0, 0.0, 0.0)}
    running.cancel()
    await asyncio.wait([running])
