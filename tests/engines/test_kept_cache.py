"""Keys and values that stay cached when the weights change, and what is sampled over them."""

import asyncio
import inspect

import pytest
import torch
from transformers import DynamicCache

from ajet.core.errors import UnsupportedModel
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Router
from ajet.core.weight_sync.folder import WeightFolder
from ajet.engines.hf_forward import CACHE_NAMES
from ajet.engines.in_process_replica import InProcessReplica
from tests.core.model.families import family_model
from tests.core.update.update_fixtures import tiny_model

PROMPT = [5, 9, 2, 7, 7, 1, 30, 12]
NUM_CACHED = len(PROMPT) - 1  # the last token is always fed
SHORT = SamplingParams(max_tokens=12, seed=4, temperature=0.8)
LONG = SamplingParams(max_tokens=300, seed=1)


def _model(seed):
    return tiny_model(seed, tie_word_embeddings=False).float()


@pytest.fixture
async def replica(request):
    kept = getattr(request, "param", 1)
    replica = InProcessReplica(
        "r0", _model(0), stop_token_ids=(), max_model_len=512, kept_versions=kept
    )
    yield replica
    await replica.close()


async def _load(replica, folder, version):
    await replica.load_weights(
        WeightFolder(folder).write(version, _model(version).named_parameters()), version
    )


def _logprobs(pieces, ids, temperature=1.0):
    """The log-probabilities of `ids` where each piece of them, `(first, stop, seed)`, is computed
    by the model of its seed over the keys and values that the models before it have left."""
    cache, logits = DynamicCache(), []
    for first, stop, seed in pieces:
        model = _model(seed)
        name = next(n for n in CACHE_NAMES if n in inspect.signature(model.forward).parameters)
        with torch.no_grad():
            out = model(torch.tensor([ids[first:stop]]), use_cache=True, **{name: cache})
        logits.append(out.logits[0])
    logprobs = (torch.cat(logits)[:-1] / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(ids)[1:, None])[:, 0]


def _assert_close(reply, expected):
    sampled = torch.tensor(reply.logprobs)
    torch.testing.assert_close(sampled, expected[-len(sampled) :], rtol=1e-4, atol=2e-5)


async def test_a_later_call_attends_to_the_keys_of_the_old_weights_and_says_how_many(
    replica, tmp_path
):
    before = await replica.generate(PROMPT, SHORT, "e/0000")
    assert before.num_old_keys == 0
    await _load(replica, tmp_path, 1)
    after = await replica.generate(PROMPT, SHORT, "e/0001")
    assert replica._engine.stats.cached_prompt_tokens == NUM_CACHED
    assert (after.policy_version, after.num_old_keys) == (1, NUM_CACHED)
    ids = [*PROMPT, *after.token_ids]
    kept = _logprobs([(0, NUM_CACHED, 0), (NUM_CACHED, len(ids), 1)], ids, SHORT.temperature)
    _assert_close(after, kept)
    anew = _logprobs([(0, len(ids), 1)], ids, SHORT.temperature)
    assert (kept - anew).abs().max() > 1e-3  # the two can be told apart


async def test_keys_are_forgotten_when_their_weights_are_older_than_the_bound(replica, tmp_path):
    await replica.generate(PROMPT, SHORT, "e/0000")
    await _load(replica, tmp_path, 1)
    await _load(replica, tmp_path, 2)
    reply = await replica.generate(PROMPT, SHORT, "e/0001")
    assert reply.num_old_keys == 0 and replica._engine.stats.cached_prompt_tokens == 0
    ids = [*PROMPT, *reply.token_ids]
    _assert_close(reply, _logprobs([(0, len(ids), 2)], ids, SHORT.temperature))
    await _load(replica, tmp_path, 3)  # what version 2 computed in their place is kept
    assert (await replica.generate(PROMPT, SHORT, "e/0002")).num_old_keys == NUM_CACHED


@pytest.mark.parametrize("replica", [0, None], indirect=True)
async def test_without_a_bound_or_with_bound_0_nothing_is_kept(replica, tmp_path):
    await replica.generate(PROMPT, SHORT, "e/0000")
    await _load(replica, tmp_path, 1)
    reply = await replica.generate(PROMPT, SHORT, "e/0001")
    assert reply.num_old_keys == 0 and replica._engine.stats.cached_prompt_tokens == 0


async def test_an_emptied_cache_keeps_nothing(replica):
    await replica.generate(PROMPT, SHORT, "e/0000")
    await replica.empty_cache()
    await replica.generate(PROMPT, SHORT, "e/0001")
    assert replica._engine.stats.cached_prompt_tokens == 0


async def test_a_reply_that_new_weights_interrupt_goes_on_over_its_old_keys(replica, tmp_path):
    router = Router([replica])
    endpoint = RoutedEndpoint(router)
    source = WeightFolder(tmp_path).write(1, _model(1).named_parameters())
    running = asyncio.create_task(endpoint.generate(PROMPT, LONG, "e/0000"))
    while replica._engine.stats.sampled_tokens < 20:
        await asyncio.sleep(0.001)
    await router.pause(abort=True)
    await router.load_weights(source, 1)
    await router.resume()
    reply = await running
    assert replica._engine.stats.cached_prompt_tokens == len(PROMPT) + reply.versions[0][0] - 1
    await router.close()
    (num_first, first), (num_rest, second) = reply.versions
    assert (first, second) == (0, 1) and num_first + num_rest == LONG.max_tokens
    # All but the token that the second piece fed first.
    num_old = len(PROMPT) + num_first - 1
    assert reply.num_old_keys == num_old
    ids = [*PROMPT, *reply.token_ids]
    _assert_close(reply, _logprobs([(0, num_old, 0), (num_old, len(ids), 1)], ids))


async def test_a_sequence_is_recomputed_from_its_first_forgotten_token_on(replica, tmp_path):
    """The beginning of version 0 is too old, so what version 1 computed over it goes too."""
    first = await replica.generate(PROMPT, SHORT, "e/0000")
    await _load(replica, tmp_path, 1)
    prompt = [*PROMPT, *first.token_ids, 3, 8]
    second = await replica.generate(prompt, SHORT, "e/0001")
    assert second.num_old_keys == len(PROMPT) + SHORT.max_tokens - 1
    await _load(replica, tmp_path, 2)
    prompt = [*prompt, *second.token_ids, 4]
    third = await replica.generate(prompt, SHORT, "e/0002")
    assert third.num_old_keys == 0
    ids = [*prompt, *third.token_ids]
    _assert_close(third, _logprobs([(0, len(ids), 2)], ids, SHORT.temperature))


def test_a_model_that_is_sampled_without_a_cache_is_refused():
    model = family_model("mistral", sliding_window=16)
    problem = "keep_kv_cache: models of type 'mistral'.*ajet.rollout.max_model_len exceeds its"
    with pytest.raises(UnsupportedModel, match=problem):
        InProcessReplica("r0", model, stop_token_ids=(), kept_versions=1)
