"""Episodes with which clients measure the model between the steps' own."""

import asyncio

from ajet.serve.exchange.exchange import EpisodeExchange
from tests.serve.exchange.served import TASKS, served

MINE = {"task_id": "mine", "main_query": "1 + 1?"}


def exchange(**options):
    return EpisodeExchange(tasks="client", **options)


async def test_an_episode_is_measured_beside_a_step_which_it_is_no_part_of():
    async with served(exchange=exchange()) as server:
        step = server.rollout(TASKS[:1], step=3)
        measured, outcome = await server.play(0.5, mode="eval", task=MINE, client="m")
        for _ in range(2):
            await server.play(mode="train", task={"task_id": "t"}, client="m")
        groups = await step
        [client] = server.exchange.status()["clients"]
    assert (measured["mode"], measured["step"]) == ("eval", 3)
    assert measured["group_id"] == "000003-measure-0000"
    assert (outcome["status"], outcome["reward"], outcome["state"]) == ("ok", 0.5, "not_trained")
    assert [group.group_id for group in groups] == ["000003-train-0000"]
    assert client["num_groups"] == 1 and client["num_ended"] == {"ok": 3}


async def test_a_client_that_measures_between_two_steps_waits_for_the_next_one():
    async with served(exchange=exchange()) as server:
        early = asyncio.create_task(server.begin(mode="eval", task=MINE))
        while server.exchange.status()["num_waiting_clients"] == 0:
            await asyncio.sleep(0.01)
        step = server.rollout(TASKS[:1], num_repeat=1, step=1)
        claim = await early
        await server.play(mode="train", task={"task_id": "t"})
        await asyncio.sleep(0.5)
        assert not step.done(), "the weights would change under the measured episode"
        assert (await server.chat(claim)).status_code == 200
        await server.end(claim)
        await asyncio.wait_for(step, 30)
        late = {"mode": "eval", "task": MINE, "wait_s": 0.2}
        assert (await server.post("/episodes", late)).status_code == 503


async def test_what_nobody_runs_does_not_hold_a_step_up():
    async with served(exchange=exchange(heartbeat_s=0.3)) as server:
        step = server.rollout(TASKS[:1], num_repeat=1, step=1)
        asking = asyncio.create_task(server.post("/episodes", {"mode": "eval", "task": MINE}))
        silent = (await asking).json()  # its client is silent from now on
        aborted = await server.begin(mode="eval", task=MINE | {"task_id": "other"})
        await server.post(f"/episodes/{aborted['id']}/abort")
        await server.play(mode="train", task={"task_id": "t"})
        await asyncio.wait_for(step, 30)
        late = await server.end(silent)
        assert late.status_code == 410
        assert server.exchange.status()["num_offered"] == 0


async def test_measured_episodes_do_not_count_for_a_share():
    async with served(exchange=exchange()) as server:
        step = server.rollout(TASKS[:1], num_repeat=1, step=1)
        for n in range(3):
            await server.play(mode="eval", task={"task_id": f"e{n}"}, client="a", max_groups=1)
        await server.play(mode="train", task={"task_id": "t"}, client="a", max_groups=1)
        assert len(await step) == 1


async def test_tasks_of_the_config_are_measured_in_its_validations_alone():
    async with served() as server:
        server.rollout(TASKS[:1], step=1)
        body = {"mode": "eval", "wait_s": 0.2}
        assert (await server.post("/episodes", body)).status_code == 503


async def test_a_request_that_gives_up_as_an_episode_is_offered_gets_it_or_nothing():
    async with served(exchange=exchange()) as server:
        step = server.rollout(TASKS[:1], num_repeat=1, step=1)
        answers = [
            await server.post(
                "/episodes", {"mode": "eval", "wait_s": 0, "task": {"task_id": f"{n}"}}
            )
            for n in range(30)
        ]
        begun = [answer.json() for answer in answers if answer.status_code == 201]
        assert server.exchange.status()["num_claimed"] == len(begun)
        for claim in begun:
            await server.end(claim)
        await server.play(mode="train", task={"task_id": "t"})
        await asyncio.wait_for(step, 30)
