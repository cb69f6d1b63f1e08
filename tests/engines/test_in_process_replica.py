"""A replica with a model of its own: new weights, sleep, pause and abort."""

import asyncio

import pytest
import torch

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Router
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.manifest import WeightsError
from ajet.engines.in_process_replica import InProcessReplica
from tests.core.update.update_fixtures import tiny_model

PROMPT = [5, 9, 2, 7, 7, 1, 30, 12]
LONG = SamplingParams(max_tokens=200, seed=1)
SHORT = SamplingParams(max_tokens=12, seed=4, temperature=0.8)


def _model(seed):
    return tiny_model(seed, tie_word_embeddings=False).float()


@pytest.fixture
async def replica():
    replica = InProcessReplica("r0", _model(0), stop_token_ids=(), max_model_len=512)
    yield replica
    await replica.close()


def _expected(model, reply, temperature):
    ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
    with torch.no_grad():
        logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]


def _assert_sampled_by(model, reply, sampling=SHORT):
    expected = _expected(model, reply, sampling.temperature)
    torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=2e-5)


async def test_new_weights_are_those_that_sample_and_every_completion_says_so(replica, tmp_path):
    folder = WeightFolder(tmp_path)
    before = await replica.generate(PROMPT, SHORT, "e/0000")
    _assert_sampled_by(_model(0), before)
    report = await replica.load_weights(folder.write(7, _model(1).named_parameters()), 7)
    after = await replica.generate(PROMPT, SHORT, "e/0001")
    _assert_sampled_by(_model(1), after)
    assert (before.policy_version, after.policy_version, report.version) == (0, 7, 7)
    assert report.num_bytes == sum(p.nbytes for p in _model(1).parameters())
    assert replica.version == 7 and before.logprobs != after.logprobs


async def test_the_prefix_cache_holds_within_a_version_and_no_longer(replica, tmp_path):
    await replica.generate(PROMPT, SHORT, "e/0000")
    await replica.generate(PROMPT, SHORT, "e/0001")
    cached = replica._engine.stats.cached_prompt_tokens
    assert cached == len(PROMPT) - 1  # the last token is always fed
    source = WeightFolder(tmp_path).write(1, _model(1).named_parameters())
    await replica.load_weights(source, 1)
    await replica.generate(PROMPT, SHORT, "e/0002")
    assert replica._engine.stats.cached_prompt_tokens == cached
    await replica.sleep()
    await replica.wake()
    await replica.resume()
    await replica.generate(PROMPT, SHORT, "e/0003")
    assert replica._engine.stats.cached_prompt_tokens == 0  # a new engine, which counts from 0
    await replica.generate(PROMPT, SHORT, "e/0004")
    assert replica._engine.stats.cached_prompt_tokens == cached


async def test_an_emptied_cache_has_no_prefix_and_what_runs_goes_on(replica):
    await replica.generate(PROMPT, SHORT, "e/0000")
    await replica.empty_cache()
    await replica.generate(PROMPT, SHORT, "e/0001")
    assert replica._engine.stats.cached_prompt_tokens == 0 and replica.version == 0
    running = asyncio.create_task(replica.generate(PROMPT, LONG, "e/0002"))
    await _until_sampled(replica, 2 * SHORT.max_tokens + 3)
    await replica.empty_cache()
    reply = await running
    assert (len(reply.token_ids), reply.finish_reason) == (200, "length")
    _assert_sampled_by(_model(0), reply, LONG)


async def test_damaged_weights_leave_the_old_ones(replica, tmp_path):
    source = WeightFolder(tmp_path).write(3, list(_model(1).named_parameters())[:-1])
    with pytest.raises(WeightsError, match="version 3: missing"):
        await replica.load_weights(source, 3)
    reply = await replica.generate(PROMPT, SHORT, "e/0000")
    _assert_sampled_by(_model(0), reply)
    assert reply.policy_version == 0


async def _until_sampled(replica, count):
    while replica._engine.stats.sampled_tokens < count:
        await asyncio.sleep(0.001)


async def test_an_aborted_request_ends_with_what_it_has(replica):
    running = asyncio.create_task(replica.generate(PROMPT, LONG, "e/0000"))
    await _until_sampled(replica, 3)
    replica.abort("e/0000")
    reply = await running
    assert reply.finish_reason == "abort" and 3 <= len(reply.token_ids) < 200
    _assert_sampled_by(_model(0), reply, LONG)


async def test_pausing_waits_for_what_runs_and_holds_what_comes(replica):
    running = asyncio.create_task(replica.generate(PROMPT, LONG, "e/0000"))
    await _until_sampled(replica, 3)
    await replica.pause()
    assert len((await running).token_ids) == 200
    held = asyncio.create_task(replica.generate(PROMPT, SHORT, "e/0001"))
    await asyncio.sleep(0.05)
    assert not held.done()
    given_up = asyncio.create_task(replica.generate(PROMPT, SHORT, "e/0002"))
    await asyncio.sleep(0)
    replica.abort("e/0002")
    assert (await given_up).token_ids == ()
    await replica.resume()
    assert len((await held).token_ids) == 12


async def test_requests_sent_to_a_sleeper_run_when_it_is_awake_with_its_new_weights(
    replica, tmp_path
):
    await replica.sleep()
    await replica.resume()  # asleep: nothing runs yet
    request = asyncio.create_task(replica.generate(PROMPT, SHORT, "e/0000"))
    source = WeightFolder(tmp_path).write(2, _model(1).named_parameters())
    await replica.load_weights(source, 2)
    await asyncio.sleep(0.02)
    assert not request.done()
    await replica.wake()
    await replica.resume()
    reply = await request
    _assert_sampled_by(_model(1), reply)
    assert reply.policy_version == 2


async def test_a_closed_replica_is_down():
    replica = InProcessReplica("r0", _model(0), stop_token_ids=(), max_model_len=512)
    running = asyncio.create_task(replica.generate(PROMPT, LONG, "e/0000"))
    await _until_sampled(replica, 1)
    await replica.close()
    for request in (running, replica.generate(PROMPT, SHORT, "e/0001"), replica.health()):
        with pytest.raises(ReplicaDown, match="r0: closed"):
            await request


async def test_two_replicas_behind_the_router_sample_what_one_does_across_a_change(tmp_path):
    """Whoever samples: seeds decide, and an aborted request goes on with the new weights."""
    folder = WeightFolder(tmp_path)
    replicas = [
        InProcessReplica(f"r{n}", _model(0), stop_token_ids=(), max_model_len=512) for n in (0, 1)
    ]
    router = Router(replicas)
    endpoint = RoutedEndpoint(router)
    both = await asyncio.gather(*(endpoint.generate(PROMPT, SHORT, f"e{n}/0000") for n in range(4)))
    assert len({reply.token_ids for reply in both}) == 1
    assert all(replica._engine.stats.sampled_tokens for replica in replicas)
    running = asyncio.create_task(endpoint.generate(PROMPT, LONG, "e9/0000"))
    while sum(replica._engine.stats.sampled_tokens for replica in replicas) < 4 * 12 + 5:
        await asyncio.sleep(0.001)
    await router.pause(abort=True)
    report = await router.load_weights(folder.write(1, _model(1).named_parameters()), 1)
    await router.resume()
    reply = await running
    assert len(reply.token_ids) == 200 and reply.policy_version == 0
    assert report.num_bytes == 2 * sum(p.nbytes for p in _model(1).parameters())
    old, new = _expected(_model(0), reply, 1.0), _expected(_model(1), reply, 1.0)
    given = torch.tensor(reply.logprobs)
    by_old, by_new = (given - old).abs() < 1e-3, (given - new).abs() < 1e-3
    assert (by_old | by_new).all() and by_old[:5].all() and by_new[-5:].all()
    await router.close()
