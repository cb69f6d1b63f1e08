"""The explorer alone, over a buffer in memory and a runner that is made by hand."""

import asyncio

import pytest

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings
from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.bounded_loop import first_of
from ajet.core.buffer.buffer import MEMORY, GroupBuffer, InFlight, plan_index
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.rollout.batch import BatchSettings
from ajet.core.task.cursor import DataCursor
from ajet.core.task.result_cursor import ResultCursor


class Endless:
    """Groups that do not end by themselves, and take a moment to end when they are told to; a
    runner with room for eight episodes."""

    free_slots = 8

    def set_free_slot_callback(self, notify): ...

    def attach(self, requests, run_folder, on_waiting): ...

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
    await asyncio.sleep(0.1)
    begun_with = {each.index: each.version for each in buffer.in_flight()}
    assert begun_with[plan_index(1, 0)] == 0  # as it was
    assert begun_with[plan_index(1, 1)] == 1  # of weights that are lost
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
