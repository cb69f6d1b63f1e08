"""The decoder with packed weights against transformers, and when its copies are dropped."""

import asyncio
import gc

import pytest
import torch
from peft import LoraConfig, get_peft_model

from ajet.core.inference.endpoint import SamplingParams
from ajet.engines.in_process import InProcessEngine
from ajet.engines.packed_decoder import PackedDecoder, PackedLinear
from tests.engines.small_decoders import CONFIGS, small_decoder

LARGE = {
    "vocab_size": 700,
    "hidden_size": 512,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "initializer_range": 0.05,
}


def _model(kind="llama", dtype=torch.float32, **fields):
    own = {"head_dim": 48} if kind == "qwen3" else {}
    return small_decoder(kind, **LARGE | own | fields).to(dtype)


async def _episode(engine, number, jitter):
    """Two turns; groups of four share a prompt of another length each; replies end at any time."""
    episode_id = f"episode{number:02d}"
    group = number // 4
    ids = [*range(40), *range(100 * group, 100 * group + 20 + 15 * group)]
    replies = []
    for turn in range(2):
        if jitter:
            await asyncio.sleep(0.003 * ((number * jitter) % 5))
        sampling = SamplingParams(
            temperature=(1.0, 0.8)[number % 2],
            max_tokens=4 + 9 * (number % 5),
            seed=100 * number + turn,
        )
        reply = await engine.generate(ids, sampling, f"{episode_id}/{turn:04d}")
        replies.append((sampling, reply))
        ids = [*reply.prompt_ids, *reply.token_ids, 7, number]
    engine.leave(episode_id)
    return replies


def _run(model, jitter=0, num_episodes=11):
    async def run():
        engine = InProcessEngine(model, stop_token_ids=(3,))
        for number in range(num_episodes):
            engine.enter(f"episode{number:02d}")
        replies = await asyncio.gather(*(_episode(engine, n, jitter) for n in range(num_episodes)))
        await engine.close()
        return [reply for of_episode in replies for reply in of_episode]

    return asyncio.run(asyncio.wait_for(run(), 60))


def _logprobs(model, sampling, reply):
    ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
    with torch.inference_mode():
        logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1].float()
    found = (logits / sampling.temperature).log_softmax(-1)
    return found.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_log_probabilities_are_those_of_transformers(kind):
    model = _model(kind)
    assert PackedDecoder.supports(model)
    for sampling, reply in _run(model):
        expected = _logprobs(model, sampling, reply)
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=2e-5)


def test_bfloat16_log_probabilities_are_close_to_those_of_float32_weights():
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products of bfloat16")
    model = _model(dtype=torch.bfloat16)
    assert PackedDecoder.supports(model)
    replies = _run(model)
    model.float()
    gaps = [_logprobs(model, s, reply) - torch.tensor(reply.logprobs) for s, reply in replies]
    assert torch.cat(gaps).abs().mean() < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_completions_are_bit_identical_whatever_the_timing(dtype):
    model = _model(dtype=dtype)
    first = _run(model)
    assert _run(model, jitter=1) == first
    assert _run(model, jitter=2) == first


def test_published_weights_are_those_that_sample_next():
    model = _model()

    async def run():
        engine = InProcessEngine(model, stop_token_ids=())
        engine.enter("a")  # one live episode throughout, so that nothing else drops the copies
        sampling = SamplingParams(max_tokens=5, seed=1)
        await engine.generate(range(50), sampling, "a/0000")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.publish(1)
        reply = await engine.generate(range(50), sampling, "a/0001")
        await engine.close()
        return sampling, reply

    sampling, reply = asyncio.run(asyncio.wait_for(run(), 60))
    torch.testing.assert_close(
        torch.tensor(reply.logprobs), _logprobs(model, sampling, reply), rtol=1e-4, atol=2e-5
    )


def test_the_copies_are_freed_when_no_episode_is_left():
    def num_packed():
        return sum(type(found) is PackedLinear for found in gc.get_objects())

    async def run(model):
        engine = InProcessEngine(model, stop_token_ids=())
        for name in ("a", "b"):
            engine.enter(name)
        sampling = SamplingParams(max_tokens=2, seed=1)
        await asyncio.gather(
            *(engine.generate(range(50), sampling, f"{name}/0000") for name in ("a", "b"))
        )
        engine.leave("a")
        await asyncio.sleep(0.05)
        while_live = num_packed()
        engine.leave("b")
        while num_packed():
            await asyncio.sleep(0.01)
        await engine.close()
        return while_live

    gc.collect()  # other tests' copies
    # Five products a layer, and the head.
    assert asyncio.run(asyncio.wait_for(run(_model()), 60)) == 2 * 5 + 1


def test_a_model_that_cannot_be_packed_is_refused():
    assert not PackedDecoder.supports(_model(dtype=torch.float64))
    assert not PackedDecoder.supports(_model(dtype=torch.float16))
    assert not PackedDecoder.supports(_model(intermediate_size=511))
    lora = get_peft_model(_model(), LoraConfig(target_modules=["q_proj"]))
    assert not PackedDecoder.supports(lora)
