"""An engine hears in one call of the episodes that are over, however many end at a time.

No Ray runs here: `Actor` stands for the engine's process.
"""

import asyncio

from ajet.cluster.actors import ImportEnv
from ajet.cluster.engine_process import ActorReplica, EngineProcess


class Engine:
    """Keeps which episodes have left."""

    def __init__(self):
        self.left = []

    def leave(self, episode_id):
        self.left.append(episode_id)


class Actor:
    """Passes a call of `leave` on to an engine's process, and counts it."""

    def __init__(self, engine):
        self.process = EngineProcess(ImportEnv.current())
        self.process._replica = engine
        self.leave, self.calls = self, []

    def remote(self, episode_ids):
        self.calls.append(asyncio.ensure_future(self.process.leave(episode_ids)))

    async def called(self, number):
        async with asyncio.timeout(60):
            while len(self.calls) < number:
                await asyncio.sleep(0.005)
        await asyncio.gather(*self.calls)


async def test_episodes_that_end_at_a_time_leave_their_engine_in_one_call():
    engine = Engine()
    actor = Actor(engine)
    replica = ActorReplica("engine 0", actor)
    for number in range(64):
        replica.leave(f"e{number}")
    await actor.called(1)
    assert engine.left == [f"e{number}" for number in range(64)]
    replica.leave("late")
    await actor.called(2)
    assert engine.left[64:] == ["late"] and len(actor.calls) == 2
