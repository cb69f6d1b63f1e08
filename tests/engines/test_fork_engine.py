"""Which calls of a fork get their recorded replies, and which are sampled."""

import asyncio

import pytest

from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.engines.replay import ForkEngine, RecordedCall, ReplayStopped

SAMPLED = (50, 51)


class Sampler(ModelEndpoint):
    """Notes the seeds and the ids of the requests that it is asked."""

    def __init__(self):
        self.asked = []

    async def generate(self, prompt_ids, sampling, request_id):
        self.asked.append((request_id, tuple(prompt_ids), sampling.seed))
        return Completion(tuple(prompt_ids), SAMPLED, (-1.0, -1.0), "stop", 4)


def call(prompt, said, started_s, ended_s):
    logprobs = (-0.5,) * len(said)
    return RecordedCall(Completion(prompt, said, logprobs, "stop", 3), started_s, ended_s)


SEQUENCE = [call((1,), (7, 8), 0, 1), call((1, 7, 8), (9,), 2, 3), call((1, 7, 8, 9), (6,), 4, 5)]
AT_ONCE = [call((1,), (7,), 0, 3), call((2,), (8,), 0.5, 1), call((3,), (6,), 4, 5)]


async def ask(engine, number, *prompt, episode="f-00", max_tokens=8):
    sampling = SamplingParams(max_tokens=max_tokens, seed=number)
    return await engine.generate(prompt, sampling, f"{episode}/{number:04d}")


async def test_calls_before_the_turn_get_the_recorded_replies_and_later_ones_are_sampled():
    engine = ForkEngine(SEQUENCE, 1, sampler := Sampler())
    first = await ask(engine, 0, 1)
    assert first == SEQUENCE[0].completion and engine.missing_calls("f-00") == [1]
    second = await ask(engine, 1, 1, 7, 8)
    third = await ask(engine, 2, 5)  # whatever is asked after the turn
    assert second.token_ids == third.token_ids == SAMPLED
    assert [asked[:2] for asked in sampler.asked] == [
        ("f-00/0001", (1, 7, 8)),
        ("f-00/0002", (5,)),
    ]
    assert engine.missing_calls("f-00") == [] and engine.departure is None


async def test_every_fork_draws_with_seeds_of_its_own_which_a_second_run_draws_again():
    def seeds(sampler):
        return [seed for _, _, seed in sampler.asked]

    async def drawn():
        engine = ForkEngine(SEQUENCE, 0, sampler := Sampler())
        for episode in ("f-00", "f-01"):
            await ask(engine, 0, 1, episode=episode)
            await ask(engine, 1, 4, episode=episode)
        return seeds(sampler)

    first = await drawn()
    assert len(set(first)) == 4 and first == await drawn()


@pytest.mark.parametrize(("number", "prompt", "at"), [(0, (2,), 0), (1, (1, 7, 9), 2)])
async def test_another_prompt_up_to_the_turn_ends_it_and_is_kept_as_the_departure(
    number, prompt, at
):
    ended = []
    engine = ForkEngine(SEQUENCE, 1, sampler := Sampler())
    engine.on_departure = lambda: ended.append(True)
    if number:
        await ask(engine, 0, 1)
    with pytest.raises(ReplayStopped):
        await ask(engine, number, *prompt)
    assert (engine.departure.recorded, engine.departure.departs_at) == (number, at)
    assert ended and not sampler.asked


async def test_a_call_that_allows_fewer_tokens_than_were_recorded_departs_where_it_is_given():
    engine = ForkEngine(SEQUENCE, 1, Sampler())
    with pytest.raises(ReplayStopped):
        await ask(engine, 0, 1, max_tokens=1)
    assert engine.departure.exceeds_max_tokens
    at_the_turn = ForkEngine(SEQUENCE, 0, Sampler())
    assert (await ask(at_the_turn, 0, 1, max_tokens=1)).token_ids == SAMPLED


async def test_calls_in_flight_together_keep_their_replies_and_the_order_of_their_ends():
    engine = ForkEngine(AT_ONCE, 2, Sampler())
    order = []

    async def asking(number, prompt):
        order.append((await ask(engine, number, prompt)).token_ids)

    await asyncio.gather(asking(0, 1), asking(1, 2))
    assert order == [(8,), (7,)]  # the second began later, and ended first
    other = ForkEngine(AT_ONCE, 0, sampler := Sampler())  # the turn itself runs beside another
    await asyncio.gather(ask(other, 0, 1), ask(other, 1, 2))
    assert [asked[1] for asked in sampler.asked] == [(1,), (2,)]


async def test_an_attempt_that_begins_again_gets_the_recorded_replies_again():
    engine = ForkEngine(SEQUENCE, 1, Sampler())
    await ask(engine, 0, 1)
    assert (await ask(engine, 0, 1)).token_ids == (7, 8)
