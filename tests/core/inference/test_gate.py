import asyncio

from ajet.core.inference.replica import Gate


async def test_a_gate_that_is_shut_again_at_once_holds_what_it_held():
    gate, through = Gate(), []

    async def request():
        through.append(await gate.enter("e/0000"))

    gate.shut()
    waiting = asyncio.create_task(request())
    await asyncio.sleep(0)
    gate.open()
    gate.shut()
    await asyncio.wait_for(gate.empty(), 1)
    for _ in range(5):
        await asyncio.sleep(0)
    assert through == [] and gate.inside == []
    gate.open()
    await waiting
    assert through == [True] and gate.inside == ["e/0000"]
