"""The layers of wide models are those of torch, in numbers and in gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from ajet.core.model import decoder, wide_layer
from ajet.core.model.decoder import Decoder
from ajet.core.model.kernels.functions import kernels
from tests.core.model.triton_interpreter import interpreted_kernels


@pytest.fixture(params=["kernels", "torch", "triton"], autouse=True)
def _computed_with(request, monkeypatch):
    """Has each test run with the compiled kernels, as where there is no compiler, and with those
    of CUDA where they are interpreted (test_triton_kernels.py)."""
    if request.param == "torch":
        monkeypatch.setattr(wide_layer, "kernels_for", lambda tensor: None)
        monkeypatch.setattr(wide_layer, "layer_kernels_for", lambda tensor: None)
    elif request.param == "triton":
        interpreted = interpreted_kernels()
        monkeypatch.setattr(wide_layer, "layer_kernels_for", lambda tensor: interpreted)
    elif kernels() is None:
        pytest.skip("no C compiler is installed")


class Norm(nn.Module):
    variance_epsilon = 1e-5

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(width) / 4)


def grads(out: Tensor, *of: Tensor) -> tuple[Tensor, ...]:
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((out * probe).sum(), of)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def test_linears_of_a_norm_have_torchs_numbers_and_gradients():
    torch.manual_seed(0)
    x, norm = torch.randn(70, 256, requires_grad=True), Norm(256)
    linears = (nn.Linear(256, 32), nn.Linear(256, 64, bias=False))
    weights = [x, norm.weight, *linears[0].parameters(), *linears[1].parameters()]
    h = F.rms_norm(x, (256,), norm.weight, 1e-5)
    expected = torch.cat([each(h) for each in linears], dim=1)
    found = torch.cat(wide_layer.linears_of_norm(x, norm, *linears), dim=1)
    torch.testing.assert_close(found, expected)
    close(grads(found, *weights), grads(expected, *weights))


FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}


def causal(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out[0].transpose(0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wide_model_has_the_gradient_of_torchs_layers(family, monkeypatch):
    torch.manual_seed(0)
    config_class, model_class = FAMILIES[family]
    config = config_class(
        vocab_size=300,
        hidden_size=256,
        intermediate_size=320,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = model_class(config)
    flat, ids, weights = Decoder(model), torch.arange(80), list(model.parameters())
    calls = []
    monkeypatch.setattr(
        decoder, "gated_mlp", lambda *a: calls.append(1) or wide_layer.gated_mlp(*a)
    )
    out = flat.logits(flat(ids, ids, causal))
    found = grads(out, *weights)
    monkeypatch.setattr(decoder, "is_wide", lambda *_: False)
    expected_out = flat.logits(flat(ids, ids, causal))
    assert len(calls) == 2
    torch.testing.assert_close(out, expected_out, rtol=1e-4, atol=1e-4)
    close(found, grads(expected_out, *weights))


@pytest.mark.parametrize(
    ("tokens", "width", "dtype", "wide"),
    [
        (64, 256, torch.float32, True),
        (64, 256, torch.bfloat16, True),
        (63, 256, torch.float32, False),
        (64, 255, torch.float32, False),
        (64, 256, torch.float64, False),
    ],
)
def test_narrow_models_few_tokens_and_float64_are_torchs(tokens, width, dtype, wide):
    x = torch.zeros(tokens, width, dtype=dtype)
    assert wide_layer.is_wide(x, nn.Linear(1, 1)) is wide
    assert not wide_layer.is_wide(x, nn.Identity())  # an adapter, say


def test_half_as_much_is_kept_for_the_backward_pass():
    """Of a token: x, q, k, v, the attention's output, x again, gate and up, in place of autograd's
    norms, activation and product beside them."""
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    flat = Decoder(LlamaForCausalLM(config))
    kept: dict[int, int] = {}

    def count(t: Tensor) -> Tensor:
        if not t.is_leaf or not t.requires_grad:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    def no_attention(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q  # keeps nothing of its own

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        x = flat._layer(
            0,
            torch.randn(64, 256, requires_grad=True),
            torch.ones(64, 1, 64),
            torch.zeros(64, 1, 64),
            no_attention,
        )
    assert x.shape == (64, 256)
    by_token = sum(size for size in kept.values()) / 64 / 4
    # The attention's output, x after it, gate and up; the first x is a leaf. Rotations: 2 x 64.
    assert by_token == 256 + 256 + 2 * 512 + 2 * 64
