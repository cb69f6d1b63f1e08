"""Engines that need no model."""

import math

from ajet.core.inference.endpoint import SamplingParams
from ajet.engines.scripted import RandomEngine, ScriptedEngine


async def test_scripted_engine_says_what_the_function_says():
    engine = ScriptedEngine(lambda ids, _sampling, request: [*ids, len(request)])
    completion = await engine.generate([4, 5], SamplingParams(), "ep/0000")
    assert completion.token_ids == (4, 5, 7)
    assert completion.logprobs == (0.0, 0.0, 0.0)
    assert completion.finish_reason == "stop"


async def test_scripted_engine_is_cut_at_max_tokens():
    engine = ScriptedEngine(lambda *_: [1, 2, 3])
    completion = await engine.generate([0], SamplingParams(max_tokens=2), "ep/0000")
    assert (completion.token_ids, completion.finish_reason) == ((1, 2), "length")


async def test_random_engine_depends_on_the_seed_alone():
    engine = RandomEngine(10)
    params = SamplingParams(max_tokens=50, seed=2**63 - 1)
    first = await engine.generate([1], params, "a/0000")
    second = await engine.generate([2, 3], params, "b/0007")
    assert first.token_ids == second.token_ids
    assert set(first.token_ids) <= set(range(10)) and len(set(first.token_ids)) > 5
    assert first.logprobs == (-math.log(10),) * 50


async def test_random_engine_stops_at_a_stop_token():
    engine = RandomEngine(2, stop_token_ids=(1,))
    completion = await engine.generate([0], SamplingParams(max_tokens=60), "a/0000")
    assert completion.finish_reason == "stop"
    assert completion.token_ids.index(1) == len(completion.token_ids) - 1
