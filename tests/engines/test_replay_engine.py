"""Which recorded completion each call of a replay is given."""

import asyncio

import pytest

from ajet.core.inference.endpoint import Completion, ContextOverflow, SamplingParams
from ajet.engines.replay import (
    RecordedCall,
    ReplayEngine,
    ReplayStopped,
    first_difference,
)


def call(prompt, said, started_s, ended_s):
    logprobs = (-0.5,) * len(said)
    return RecordedCall(Completion(prompt, said, logprobs, "stop", 3), started_s, ended_s)


ONE_AFTER_ANOTHER = [call((1, 2), (7, 8), 0.0, 1.0), call((1, 2, 7, 8, 3), (9,), 1.5, 2.0)]
AT_ONCE = [call((1, 2), (7,), 0.0, 3.0), call((1, 5), (8,), 0.5, 1.0), call((1, 9), (6,), 4.0, 5.0)]


async def ask(engine, *prompt, max_tokens=8):
    return await engine.generate(prompt, SamplingParams(max_tokens=max_tokens), "e/0000")


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((), (), None)],
)
def test_the_first_difference_may_be_an_end(a, b, at):
    assert first_difference(a, b) == at


async def test_the_replay_engine_returns_recorded_completions_in_order():
    engine = ReplayEngine(ONE_AFTER_ANOTHER)
    first = await ask(engine, 1, 2)
    assert first == ONE_AFTER_ANOTHER[0].completion
    second = await ask(engine, 1, 4, 7)
    assert (second.prompt_ids, second.token_ids) == ((1, 4, 7), (9,))
    assert [c.departs_at for c in engine.calls] == [None, 1]
    assert (engine.missing_calls, engine.stopped) == ([], False)


async def test_a_later_call_is_never_given_for_its_prompt_alone():
    engine = ReplayEngine(ONE_AFTER_ANOTHER)
    given = await ask(engine, 1, 2, 7, 8, 3)  # the second call's prompt, but it comes first
    assert given.token_ids == (7, 8)
    assert engine.calls[0].departs_at == 2 and engine.missing_calls == [1]


async def test_calls_that_were_in_flight_together_are_matched_by_their_prompts():
    engine = ReplayEngine(AT_ONCE)
    second = await ask(engine, 1, 5)
    third = await ask(engine, 1, 4)  # nearest to the one that is left of the two
    assert (second.token_ids, third.token_ids) == ((8,), (7,))
    assert [c.recorded for c in engine.calls] == [1, 0]
    assert [c.departs_at for c in engine.calls] == [None, 1]
    assert (await ask(engine, 1, 9)).token_ids == (6,)


async def test_calls_in_flight_are_answered_in_the_order_of_the_record():
    engine, ended = ReplayEngine(AT_ONCE), []

    async def agent(*prompt):
        ended.append((await ask(engine, *prompt)).token_ids)

    await asyncio.gather(agent(1, 2), agent(1, 5))
    assert ended == [(8,), (7,)]


async def test_the_call_after_the_last_recorded_one_ends_the_replay():
    engine = ReplayEngine(ONE_AFTER_ANOTHER[:1])
    await ask(engine, 1, 2)
    for _ in range(2):  # an agent may try again: it is noted once
        with pytest.raises(ReplayStopped):
            await ask(engine, 1, 2)
    assert engine.ended.is_set() and engine.stopped
    assert [c.recorded for c in engine.calls] == [0, None]


async def test_an_episode_that_was_too_long_for_the_model_is_so_again():
    engine = ReplayEngine(ONE_AFTER_ANOTHER[:1], overflow="no room for a token")
    await ask(engine, 1, 2)
    with pytest.raises(ContextOverflow, match="no room for a token"):
        await ask(engine, 1, 2, 7, 8)
    assert not engine.stopped


async def test_a_replay_that_is_to_stop_gives_nothing_where_it_departs():
    engine = ReplayEngine(ONE_AFTER_ANOTHER, stops_at_departure=True)
    await ask(engine, 1, 2)
    with pytest.raises(ReplayStopped):
        await ask(engine, 1, 2, 7, 8, 4)
    with pytest.raises(ReplayStopped):
        await ask(engine, 1, 2, 7, 8, 3)
    assert [c.departs_at for c in engine.calls] == [None, 4]


async def test_a_call_that_asks_for_fewer_tokens_than_were_recorded_is_known():
    engine = ReplayEngine(ONE_AFTER_ANOTHER)
    await ask(engine, 1, 2, max_tokens=1)
    assert engine.calls[0].exceeds_max_tokens
