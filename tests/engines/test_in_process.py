"""The engine against transformers' own forward, under load, in waves, and when things go wrong."""

import asyncio
import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import ContextOverflow, SamplingParams
from ajet.core.model.precision import to_float64
from ajet.engines import flat_forward
from ajet.engines.grid_batch import GridBatch
from ajet.engines.in_process import InProcessEngine
from tests.engines.taped_graph import TapedGraph

VOCAB = 64
SMALL = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
CONFIGS = {
    "qwen2": lambda: Qwen2Config(**SMALL, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**SMALL, head_dim=12, tie_word_embeddings=False),
    "llama": lambda: LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0
    ),
}
NUM_EPISODES, GROUP, TURNS = 12, 4, 3


def _model(kind="qwen2"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(CONFIGS[kind]()).float()


async def _episode(engine, number, completions, jitter):
    """Three turns after a system prompt that all share and a question that the group shares."""
    episode_id, pause = f"episode{number:02d}", random.Random(f"{jitter}/{number}")
    ids = [*range(1, 61), *range(1, 31), 10 + number // GROUP, *range(number // GROUP)]
    engine.enter(episode_id)
    for turn in range(TURNS):
        if jitter:
            await asyncio.sleep(pause.random() * 0.02)
        sampling = SamplingParams(
            temperature=(1.0, 0.7, 0.0)[number % 3],
            top_p=(1.0, 0.9)[number % 2],
            max_tokens=8 + number % 5,
            stop_token_ids=(5, 6),
            seed=100 * number + turn,
        )
        request_id = f"{episode_id}/{turn:04d}"
        completions[request_id] = (sampling, await engine.generate(ids, sampling, request_id))
        reply = completions[request_id][1]
        ids = [*reply.prompt_ids, *reply.token_ids, 7, number, turn, 8]
    engine.leave(episode_id)


def _run(model, jitter=0, **options):
    async def run():
        engine, completions = InProcessEngine(model, stop_token_ids=(3,), **options), {}
        await asyncio.gather(
            *(_episode(engine, n, completions, jitter) for n in range(NUM_EPISODES))
        )
        await engine.close()
        return completions, engine.stats

    return asyncio.run(asyncio.wait_for(run(), 60))


def _assert_exact(model, completions):
    """Every log-probability is that of transformers' forward over the whole sequence."""
    for sampling, reply in completions.values():
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.inference_mode():
            logits = model.eval()(ids).logits[0, len(reply.prompt_ids) - 1 : -1]
        logits = logits / (sampling.temperature or 1.0)
        if sampling.top_p < 1 and sampling.temperature:
            probs, order = logits.softmax(-1).sort(descending=True)
            beyond = (probs.cumsum(-1) - probs >= sampling.top_p).gather(1, order.argsort())
            logits = logits.masked_fill(beyond, float("-inf"))
        expected = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", CONFIGS)
def test_log_probabilities_are_those_of_transformers(kind):
    model = _model(kind)
    completions, stats = _run(model)
    assert len(completions) == NUM_EPISODES * TURNS
    _assert_exact(model, completions)
    assert stats.sampled_tokens == sum(len(c.token_ids) for _, c in completions.values())
    assert stats.prompt_tokens == sum(len(c.prompt_ids) for _, c in completions.values())
    if kind != "gpt2":
        # Turn 1: one system prompt and three questions; later turns: a few new tokens each.
        assert stats.cached_prompt_tokens > 0.9 * stats.prompt_tokens


def test_completions_are_bit_identical_whatever_the_timing():
    model = _model()
    first, _ = _run(model)
    assert _run(model, jitter=1)[0] == first
    assert _run(model, jitter=2)[0] == first


def test_a_seed_gives_the_same_tokens_in_any_batch():
    model = _model()
    tokens = [
        {name: reply.token_ids for name, (_, reply) in _run(model, **options)[0].items()}
        for options in (
            {},
            {"max_num_seqs": 1},
            {"max_num_seqs": 5},
            {"max_kv_tokens": 420},
            {"deterministic": False, "jitter": 3, "max_num_seqs": 7},
        )
    ]
    assert all(other == tokens[0] for other in tokens[1:])


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_in_float64_a_batch_shows_in_no_log_probability(kind):
    model = to_float64(_model(kind))
    alone, _ = _run(model, max_num_seqs=1)
    joining, _ = _run(model, deterministic=False, max_num_seqs=7, jitter=3)
    for name, (_, reply) in alone.items():
        other = joining[name][1]
        assert other.token_ids == reply.token_ids
        np.testing.assert_allclose(other.logprobs, reply.logprobs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"max_num_seqs": 5},
        {"max_kv_tokens": 420},  # three rows at most, and constant eviction
        {"deterministic": False, "max_num_seqs": 7, "jitter": 3},
    ],
    ids=["few rows", "little room", "joining"],
)
def test_log_probabilities_are_exact_when_rows_come_and_go(options):
    model = _model()
    _assert_exact(model, _run(model, **options)[0])


def test_log_probabilities_are_exact_where_all_segments_are_multiplied_at_once(monkeypatch):
    made = []

    class Grid(GridBatch):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)

    on_a_gpu = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(flat_forward.FlatForward, "_prefers_grid", on_a_gpu, raising=False)
    monkeypatch.setattr(flat_forward, "GridBatch", Grid)
    model = _model()
    _assert_exact(model, _run(model)[0])
    assert made


@pytest.mark.parametrize(
    "options",
    [{}, {"max_kv_tokens": 420}, {"deterministic": False, "max_num_seqs": 7, "jitter": 3}],
    ids=["waves", "little room", "joining"],
)
def test_log_probabilities_are_exact_where_steps_are_replayed(options):
    model, graphs = _model(), []

    def make_graph(model):
        graphs.append(TapedGraph())
        return graphs[-1]

    completions, stats = _run(model, make_graph=make_graph, **options)
    _assert_exact(model, completions)
    [graph] = graphs
    # Each layout of rows begins with an eager step, and one that lasts is captured.
    assert 0 < graph.num_captured <= stats.eager_steps < stats.replayed_steps


def test_replayed_completions_are_bit_identical_whatever_the_timing():
    model = _model()
    first, first_stats = _run(model, make_graph=lambda _: TapedGraph())
    second, stats = _run(model, jitter=1, make_graph=lambda _: TapedGraph())
    assert second == first
    assert (stats.eager_steps, stats.replayed_steps) == (
        first_stats.eager_steps,
        first_stats.replayed_steps,
    )


def test_a_long_prompt_is_computed_in_pieces():
    model = _model()
    ids = [n * n % VOCAB for n in range(1300)]

    async def run():
        engine = InProcessEngine(model, stop_token_ids=())
        sampling = SamplingParams(max_tokens=3)
        replies = await asyncio.gather(
            engine.generate(ids, sampling, "a/0000"), engine.generate(ids[:700], sampling, "b/0000")
        )
        await engine.close()
        return replies

    replies = asyncio.run(run())
    _assert_exact(model, dict(enumerate((SamplingParams(), reply) for reply in replies)))


async def _one(model, ids=(1, 2, 3), request_id="a/0000", *, sampling=None, **options):
    engine = InProcessEngine(model, stop_token_ids=options.pop("stop_token_ids", ()), **options)
    try:
        return await engine.generate(
            list(ids), sampling or SamplingParams(max_tokens=5), request_id
        )
    finally:
        await engine.close()


async def test_stop_token_is_included_and_ends_the_completion():
    model = _model()
    free = await _one(model, sampling=SamplingParams(max_tokens=20, seed=1))
    stop = free.token_ids[4]
    cut = free.token_ids[: free.token_ids.index(stop) + 1]
    stopped = await _one(
        model, sampling=SamplingParams(max_tokens=20, seed=1, stop_token_ids=(stop,))
    )
    assert (stopped.token_ids, stopped.finish_reason) == (cut, "stop")
    by_engine = await _one(
        model, sampling=SamplingParams(max_tokens=20, seed=1), stop_token_ids=(stop,)
    )
    assert by_engine.token_ids == cut


async def test_max_tokens_and_max_model_len_end_with_length():
    model = _model()
    reply = await _one(model)
    assert (len(reply.token_ids), reply.finish_reason) == (5, "length")
    reply = await _one(model, range(1, 11), max_model_len=12)
    assert (len(reply.token_ids), reply.finish_reason) == (2, "length")


async def test_a_prompt_without_room_for_a_token_overflows():
    with pytest.raises(ContextOverflow, match="max_model_len is 12"):
        await _one(_model(), range(1, 13), max_model_len=12)
    with pytest.raises(ContextOverflow, match="KV budget 8"):
        await _one(_model(), range(1, 6), max_kv_tokens=8)


@pytest.mark.parametrize("ids", [(), (1, VOCAB), (-1,)])
async def test_prompts_that_are_no_token_ids_are_refused(ids):
    with pytest.raises(ValueError, match="token ids"):
        await _one(_model(), ids)


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
async def test_a_prompt_of_one_token_works(kind):
    model = _model(kind)
    reply = await _one(model, (9,))
    _assert_exact(model, {0: (SamplingParams(), reply)})


async def test_bfloat16_weights_work_and_logits_are_float32():
    model = _model().to(torch.bfloat16)
    reply = await _one(model, range(1, 40), sampling=SamplingParams(max_tokens=8, top_k=20))
    assert len(reply.token_ids) == 8
    ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
    with torch.inference_mode():
        logits = model.eval()(ids).logits[0, 38:-1].float()
    kept = logits.topk(20).values[:, -1:]
    expected = logits.masked_fill(logits < kept, float("-inf")).log_softmax(-1)
    expected = expected.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    assert (torch.tensor(reply.logprobs) - expected).abs().median() < 0.1


@pytest.mark.parametrize("kind", ["qwen2", "gpt2"])
def test_a_lora_wrapped_model_samples_from_the_adapted_weights(kind):
    from peft import LoraConfig, get_peft_model

    target = ["q_proj", "down_proj"] if kind == "qwen2" else ["c_attn"]
    lora = LoraConfig(r=2, init_lora_weights=False, target_modules=target)
    model = get_peft_model(_model(kind), lora)
    _assert_exact(model, _run(model)[0])


def _shift_(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)


async def test_publish_uses_the_new_weights_and_forgets_the_cache():
    model = _model()
    engine = InProcessEngine(model, stop_token_ids=())
    ids, sampling = list(range(1, 50)), SamplingParams(max_tokens=5)
    before = await engine.generate(ids, sampling, "a/0000")
    _shift_(model)
    engine.publish(7)
    after = await engine.generate(ids, sampling, "b/0000")
    assert (before.policy_version, after.policy_version, engine.policy_version) == (0, 7, 7)
    assert engine.stats.cached_prompt_tokens == 0
    _assert_exact(model, {0: (sampling, after)})
    await engine.close()


async def test_publish_frees_the_memory_of_keys_and_values_until_the_next_request():
    engine = InProcessEngine(_model(), stop_token_ids=())
    (forward,) = (batch.forward for batch in engine._batches.values())
    pool = forward._pool
    assert pool.k.numel() == 0
    await engine.generate((1, 2, 3), SamplingParams(max_tokens=2, seed=0), "e/0000")
    slots = 1 + forward._max_kv_tokens  # and slot 0
    assert pool.k.shape == pool.v.shape == (2, 2, slots, 8)
    engine.publish(1)
    await engine.close()  # its thread has ended
    assert pool.k.numel() == pool.v.numel() == 0


async def test_a_wave_waits_for_every_live_episode():
    engine = InProcessEngine(_model(), stop_token_ids=())
    for name in "ab":
        engine.enter(name)
    first = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=2), "a/0000"))
    await asyncio.sleep(0.1)
    assert not first.done()
    engine.leave("b")
    assert len((await first).token_ids) == 2
    await engine.close()


async def test_a_cancelled_request_holds_up_nobody():
    engine = InProcessEngine(_model(), stop_token_ids=(), max_model_len=4096)
    for name in "abc":
        engine.enter(name)
    long = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=4000), "a/0000"))
    short = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=3), "b/0000"))
    waiting = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=3), "c/0000"))
    await asyncio.sleep(0)
    waiting.cancel()  # before the wave starts
    engine.leave("c")
    assert len((await short).token_ids) == 3  # resolves while the long one runs
    assert not long.done()
    long.cancel()  # while it runs
    engine.leave("a")
    again = await engine.generate([1, 2], SamplingParams(max_tokens=3), "b/0001")
    assert len(again.token_ids) == 3
    await engine.close()


async def test_abort_ends_a_request_with_what_it_has():
    engine = InProcessEngine(_model(), stop_token_ids=(), max_model_len=4096)
    running = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=4000), "a/0000"))
    while not engine.stats.sampled_tokens:
        await asyncio.sleep(0.005)
    engine.abort("a/0000")
    reply = await asyncio.wait_for(running, 5)
    assert reply.finish_reason == "abort"
    assert 0 < len(reply.token_ids) == len(reply.logprobs) < 3999
    engine.enter("c")
    waiting = asyncio.create_task(engine.generate([1], SamplingParams(), "b/0000"))
    await asyncio.sleep(0.02)
    engine.abort("b/0000")
    assert (await waiting).token_ids == ()
    await engine.close()


async def test_a_failure_reaches_every_caller_and_the_engine_goes_on():
    model = _model()
    engine = InProcessEngine(model, stop_token_ids=())
    weight = model.model.norm.weight
    with torch.no_grad():
        weight.fill_(float("nan"))
    calls = [engine.generate([1, 2], SamplingParams(), f"{n}/0000") for n in range(3)]
    errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert all(isinstance(error, ModelError) and "diverged" in str(error) for error in errors)
    assert {error.code for error in errors} == {Code.DIVERGED}
    with torch.no_grad():
        weight.fill_(1.0)
    engine.publish(1)
    reply = await engine.generate([1, 2], SamplingParams(max_tokens=2), "0/0001")
    assert len(reply.token_ids) == 2
    await engine.close()


async def test_closing_fails_what_is_under_way():
    engine = InProcessEngine(_model(), stop_token_ids=(), max_model_len=4096)
    running = asyncio.create_task(engine.generate([1], SamplingParams(max_tokens=4000), "a/0000"))
    while not engine.stats.sampled_tokens:
        await asyncio.sleep(0.005)
    await engine.close()
    with pytest.raises(ModelError, match="closed"):
        await running


async def test_a_request_id_in_use_is_refused():
    engine = InProcessEngine(_model(), stop_token_ids=())
    engine.enter("b")
    first = asyncio.create_task(engine.generate([1], SamplingParams(), "a/0000"))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="already under way"):
        await engine.generate([1], SamplingParams(), "a/0000")
    first.cancel()
    await engine.close()


def test_an_engine_serves_one_event_loop_after_another():
    model = _model()
    engine = InProcessEngine(model, stop_token_ids=())

    async def ask(turn):
        return await engine.generate([1, 2], SamplingParams(max_tokens=2), f"a/{turn:04d}")

    assert len({asyncio.run(ask(turn)).token_ids for turn in range(3)}) == 1
    asyncio.run(engine.close())


async def test_the_model_is_back_in_training_mode_when_the_last_reply_arrives():
    model = _model().train()
    engine = InProcessEngine(model, stop_token_ids=())
    await engine.generate([1, 2], SamplingParams(max_tokens=3), "a/0000")
    assert model.training
    await engine.close()
