"""Packed copies of single linear layers, under models of any family, against transformers."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ajet.engines import packed_decoder
from ajet.engines.packed_weights import PackedWeights
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
