"""The explorer alone, over a buffer in memory and a runner that is made by hand."""

import asyncio

import pytest

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings
from ajet.backbones.disaggregated.version_state import VersionState
from ajet.core.bounded_loop import first_of
from ajet.core.buffer.buffer import MEMORY, Begun, Buffer, place_of
from ajet.core.buffer.staleness import StalenessBound
from ajet.core.rollout.batch import BatchSettings
from ajet.core.task.cursor import DataCursor


class Endless:
    """Groups that do not end by themselves, and take a moment to end when they are told to; a
    runner with room for eight episodes."""

    free_slots = 8

    def set_free_slot_callback(self, notify): ...

    async def rollout_group(self, step, number, task):
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.2)


def explorer_over(buffer, place, how="continue"):
    settings = ExplorerSettings(BatchSettings(2, 2), 9, 0.5, how)
    endless = Endless()
    return Explorer(endless, endless, DataCursor(100, 2, seed=1), buffer, place, settings)


async def test_a_run_that_is_ended_while_groups_are_held_ends():
    buffer, place = Buffer(MEMORY, StalenessBound(1, 2, 1, 2)), VersionState(0)
    buffer.reopen(0)
    explorer = explorer_over(buffer, place, "recompute")

    async def new_weights():
        place.publish(0)
        await asyncio.sleep(0.1)
        await explorer.hold()
        pytest.fail("they take longer to end")

    running = asyncio.create_task(first_of(new_weights(), explorer.run()))
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)


async def test_a_group_that_begins_again_counts_as_begun_when_it_was():
    """Members that had ended may be of the weights of then: a trainer waits for it in time."""
    buffer, place = Buffer(MEMORY, StalenessBound(1, 2, 1, 2)), VersionState(0)
    buffer.reopen(0)
    buffer.begin([Begun(place_of(1, 0), 7, 0), Begun(place_of(1, 1), 8, 3)])
    explorer = explorer_over(buffer, place)
    explorer.load_state_dict(None)
    place.trained = 1
    place.publish(1)
    running = asyncio.create_task(explorer.run())
    await asyncio.sleep(0.1)
    versions = {each.place: each.version for each in buffer.in_flight()}
    assert versions[place_of(1, 0)] == 0  # as it was
    assert versions[place_of(1, 1)] == 1  # of weights that are lost
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
