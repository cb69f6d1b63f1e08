"""The decoder with joined weights against `Decoder`, in float64 on a CPU."""

import asyncio
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.decoder import Decoder
from ajet.core.model.precision import to_float64
from ajet.engines.copied_decoder import JoinedDecoder, JoinedLayer
from ajet.engines.in_process import InProcessEngine
from tests.engines.small_decoders import CONFIGS, small_decoder

SIZES = {
    "vocab_size": 90,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_attention_heads": 6,
    "initializer_range": 0.1,
}


def _model(kind="qwen2", **fields) -> Any:
    own = {"head_dim": 16} if kind == "qwen3" else {}
    return to_float64(small_decoder(kind, **SIZES | own | fields))


def _attend(layer, q, k, v):
    """Causal attention of one sequence."""
    q, k, v = (each.transpose(0, 1)[None] for each in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


class _Products(TorchDispatchMode):
    """Counts products of matrices."""

    def __init__(self):
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += func.overloadpacket.__name__ in ("mm", "addmm", "addmm_", "linear")
        return func(*args, **(kwargs or {}))


def _computed(decoder):
    ids = torch.arange(20) * 7 % 90
    with torch.inference_mode(), _Products() as products:
        hidden = decoder(ids, torch.arange(20), _attend)
    return hidden, products.num


@pytest.fixture
def on_any_device(monkeypatch):
    """Has it compute on a CPU what it computes on a GPU."""
    monkeypatch.setattr(JoinedDecoder, "supports", staticmethod(Decoder.supports))


@pytest.mark.usefixtures("on_any_device")
@pytest.mark.parametrize("kind", CONFIGS)
def test_it_computes_what_the_decoder_does_by_4_products_a_layer_in_place_of_7(kind):
    model = _model(kind)
    expected, num_expected = _computed(Decoder(model))
    found, num_found = _computed(JoinedDecoder(model))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert (num_expected, num_found) == (2 * 7, 2 * 4)


@pytest.mark.usefixtures("on_any_device")
def test_copies_are_made_again_after_they_were_freed(monkeypatch):
    model, made = _model(), []
    of = JoinedLayer.of
    monkeypatch.setattr(JoinedLayer, "of", lambda layer: made.append(layer) or of(layer))
    decoder = JoinedDecoder(model)
    for _ in range(2):
        _computed(decoder)
    assert made == list(model.model.layers)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    decoder.free()
    torch.testing.assert_close(_computed(decoder)[0], _computed(Decoder(model))[0])


@pytest.mark.usefixtures("on_any_device")
def test_the_engine_computes_by_it_and_published_weights_sample_next(monkeypatch):
    model, made = _model(), []
    of = JoinedLayer.of
    monkeypatch.setattr(JoinedLayer, "of", lambda layer: made.append(layer) or of(layer))
    prompt = [*range(30)]

    async def run():
        engine = InProcessEngine(model, stop_token_ids=())
        engine.enter("a")  # one live episode throughout, so that nothing else drops the copies
        sampling = SamplingParams(max_tokens=5, seed=1)
        first = await engine.generate(prompt, sampling, "a/0000")
        before = [_expected(prompt, first)]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
        engine.publish(1)
        second = await engine.generate(prompt, sampling, "a/0001")
        await engine.close()
        return (first, before[0]), (second, _expected(prompt, second))

    def _expected(prompt, reply):
        ids = torch.tensor([*prompt, *reply.token_ids])
        with torch.inference_mode():
            logits = model(ids[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return logits.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]

    replies = asyncio.run(asyncio.wait_for(run(), 60))
    assert len(made) == 2 * 2  # both layers, before and after
    for reply, expected in replies:
        torch.testing.assert_close(
            torch.tensor(reply.logprobs).double(), expected, atol=1e-6, rtol=0
        )


def test_what_cannot_be_joined_is_refused(monkeypatch):
    monkeypatch.setattr("ajet.engines.copied_decoder.cuda_kernels_for", lambda tensor: object())
    module = "ajet.engines.copied_decoder"
    # Two layers of q (48), k and v (16 each), gate and up (40 each), of 48 values of 8 bytes.
    copied = 2 * (48 + 2 * 16 + 2 * 40) * 48 * 8
    for available, expected in ((10 * copied, True), (10 * copied - 10, False)):
        monkeypatch.setattr(f"{module}.gpu_bytes", lambda device, num=available: num)
        assert JoinedDecoder.supports(_model()) is expected
    monkeypatch.setattr(f"{module}.gpu_bytes", lambda device: 1 << 40)
    assert not JoinedDecoder.supports(_model("llama", attention_bias=True))
    assert not JoinedDecoder.supports(_model("llama", mlp_bias=True))
    assert not JoinedDecoder.supports(
        get_peft_model(_model(), LoraConfig(target_modules=["q_proj"]))
    )
    monkeypatch.undo()
    assert not JoinedDecoder.supports(_model())  # on a CPU
