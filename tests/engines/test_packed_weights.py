"""Packed copies of single linear layers, under models of any family, against transformers."""

import gc

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ajet.core.update.many_adapters import sharing_weights
from ajet.engines import packed_decoder
from ajet.engines.packed_decoder import PackedWeights
from tests.core.model.families import family_model
from tests.engines.test_packed_decoder import _logprobs, _model, _run

WIDE = {"vocab_size": 700, "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64}


def wide(name):
    return family_model(name, **WIDE, initializer_range=0.05)


def lora(name):
    config = LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    return get_peft_model(_model() if name == "llama" else wide(name), config).eval()


@pytest.mark.parametrize(
    "make, name",
    [(wide, "mistral"), (wide, "phi"), (wide, "qwen2_moe"), (lora, "llama"), (lora, "mistral")],
)
def test_log_probabilities_are_those_of_transformers(make, name):
    model = make(name)
    assert PackedWeights.supports(model)
    for sampling, reply in _run(model):
        expected = _logprobs(make(name), sampling, reply)
        torch.testing.assert_close(torch.tensor(reply.logprobs), expected, rtol=1e-4, atol=5e-5)


def test_copies_are_computed_from_in_inference_alone_and_until_they_are_freed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.large, self.small = nn.Linear(512, 512), nn.Linear(512, 8)

    model = Model()
    weights = PackedWeights(model)
    x = torch.randn(4, 512)
    before = model.large(x)
    weights.pack()
    forward = model.large.forward
    weights.pack()
    assert model.large.forward is forward
    assert "forward" not in model.small.__dict__
    with torch.no_grad():
        model.large.weight.zero_()  # what is packed has not changed
    with torch.inference_mode():
        torch.testing.assert_close(model.large(x), before, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.large(x), model.large.bias.expand(4, -1))
    weights.free()
    assert "forward" not in model.large.__dict__
    with torch.inference_mode():
        assert torch.equal(model.large(x), model.large.bias.expand(4, -1))


def test_what_computes_a_layer_already_does_again_afterwards():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.large = nn.Linear(512, 512)

    model = Model()
    own = model.large.forward = lambda x: x + 1
    weights = PackedWeights(model)
    weights.pack()
    assert model.large.forward(torch.zeros(1)) == 1  # gradients may be asked for
    weights.free()
    assert model.large.forward is own


def test_weights_that_cannot_be_packed_are_refused(monkeypatch):
    assert not PackedWeights.supports(wide("mistral").double())
    assert not PackedWeights.supports(family_model("mistral"))
    monkeypatch.setattr(packed_decoder, "MIN_WEIGHTS", 0)
    assert not PackedWeights.supports(wide("mistral").half())


def test_models_over_one_base_share_its_copies_until_the_last_one_frees_them():
    base = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    base[0].requires_grad_(False)
    models = [sharing_weights(base) for _ in range(2)]
    packed = [PackedWeights(model) for model in models]

    def copies():
        for weights in packed:
            weights.pack()
        return [[layer.forward.args[0].weight for layer in model] for model in models]

    (first, trained), (second, also_trained) = copies()
    assert first is second and trained is not also_trained
    packed[0].free()
    packed[0].pack()
    assert models[0][0].forward.args[0].weight is first
    for weights in packed:
        weights.free()
    with torch.no_grad():
        base[0].weight.zero_()
    x = torch.randn(4, 512)
    copies()
    with torch.inference_mode():
        assert torch.equal(models[1][0](x), base[0].bias.expand(4, -1))
    del packed[:], weights
    gc.collect()
    assert not packed_decoder._shared
