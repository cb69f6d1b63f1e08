"""A request that is aborted before its engine has begun it runs for nobody.

No Ray runs here: `Actor` stands for the engine's process.
"""

import asyncio

import pytest

from ajet.cluster.actors import ImportEnv
from ajet.cluster.engine_process import ActorReplica, EngineProcess
from ajet.core.inference.endpoint import Completion, SamplingParams

SAMPLING = SamplingParams(max_tokens=6)


class Engine:
    """Samples until it is told to end the request."""

    def __init__(self):
        self.running = {}

    async def generate(self, prompt_ids, sampling, request_id):
        ended = self.running[request_id] = asyncio.Event()
        await ended.wait()
        del self.running[request_id]
        return Completion(tuple(prompt_ids), (5,), (-0.5,), "abort", 3)

    def abort(self, request_id):
        if request_id in self.running:
            self.running[request_id].set()


class Call:
    def __init__(self, method):
        self.method = method

    def remote(self, *arguments):
        return asyncio.ensure_future(self.method(*arguments))


class Actor:
    """Begins the calls of an engine's process in their order."""

    def __init__(self, engine):
        process = EngineProcess(ImportEnv.current())
        process._replica = engine
        self.submit, self.take, self.abort = map(
            Call, (process.submit, process.take, process.abort)
        )


async def test_a_request_that_is_cancelled_before_it_is_sent_is_not_sent():
    engine = Engine()
    replica = ActorReplica("engine 0", Actor(engine))
    asked = [asyncio.create_task(replica.generate([1], SAMPLING, name)) for name in ("e/0", "f/0")]
    await asyncio.sleep(0)
    asked[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
    replica.abort("e/0")
    await asyncio.sleep(0.1)
    assert list(engine.running) == ["f/0"]
    replica.abort("f/0")
    assert (await asked[1]).token_ids == (5,)


async def test_a_request_that_is_given_up_before_it_is_sent_ends_at_once_without_tokens():
    engine = Engine()
    replica = ActorReplica("engine 0", Actor(engine))
    asked = asyncio.create_task(replica.generate([1, 2], SAMPLING, "e/0"))
    await asyncio.sleep(0)
    replica.abort("e/0")
    async with asyncio.timeout(5):
        assert await asked == Completion((1, 2), (), (), "abort", 0)
    await asyncio.sleep(0.1)
    assert engine.running == {}


async def test_an_abort_that_follows_its_request_at_once_ends_it():
    engine = Engine()
    actor = Actor(engine)
    actor.submit.remote("client", [([1], SAMPLING, "e/0")])
    actor.abort.remote("e/0")
    async with asyncio.timeout(5):
        ((request_id, completion),) = await actor.take.remote("client")
    assert request_id == "e/0" and completion.finish_reason == "abort"
