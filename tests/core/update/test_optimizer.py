import math

import pytest
import torch
from torch import nn
from update_fixtures import tiny_model

from ajet.core.model.allocator import LARGE
from ajet.core.update.optimizer import ModelOptimizer, lr_at
from ajet.core.update.settings import OptimizerSettings


def test_learning_rate_warms_up_and_stays():
    settings = OptimizerSettings(lr=1.0, warmup_steps=4)
    assert [lr_at(k, settings) for k in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_learning_rate_follows_a_cosine_to_its_floor():
    settings = OptimizerSettings(
        lr=1.0, warmup_steps=1, lr_schedule="cosine", total_steps=5, min_lr_ratio=0.1
    )
    found = [lr_at(k, settings) for k in (0, 1, 3, 5, 9)]
    assert found == pytest.approx([1.0, 1.0, 0.55, 0.1, 0.1])


def test_learning_rate_falls_on_a_line():
    settings = OptimizerSettings(lr=1.0, lr_schedule="linear", total_steps=4, min_lr_ratio=0.2)
    assert [lr_at(k, settings) for k in (0, 1, 2, 4, 9)] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def layer_with_grad(grad, dtype=torch.float32):
    layer = nn.Linear(1, 1, bias=False, dtype=dtype)
    nn.init.ones_(layer.weight)
    layer.weight.grad = torch.tensor([[grad]], dtype=dtype)
    return layer


def test_the_norm_is_reported_before_clipping_and_clipped():
    layer = layer_with_grad(4.0)
    optimizer = ModelOptimizer(layer, OptimizerSettings(lr=0.1, grad_clip=1.0))
    assert optimizer.step().grad_norm == pytest.approx(4.0)
    assert optimizer.tensors()["weight.exp_avg"].item() == pytest.approx(0.1)  # (1 - 0.9) * 1


@pytest.mark.parametrize("grad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(grad):
    layer = layer_with_grad(grad)
    optimizer = ModelOptimizer(layer, OptimizerSettings(lr=0.1))
    outcome = optimizer.step()
    assert not outcome.stepped
    assert layer.weight.item() == 1.0
    assert (optimizer.num_steps, optimizer.num_skipped) == (0, 1)
    assert optimizer.tensors() == {} and layer.weight.grad is None


def test_weight_decay_spares_norms_biases_and_embeddings():
    model = tiny_model()
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    ModelOptimizer(model, OptimizerSettings(lr=0.1, weight_decay=0.5)).step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert "model.layers.0.mlp.up_proj.weight" in moved
    assert not [n for n in moved if "norm" in n or "bias" in n or "embed" in n]
    torch.testing.assert_close(
        model.model.layers[0].mlp.up_proj.weight,
        before["model.layers.0.mlp.up_proj.weight"] * 0.95,
    )


def test_narrow_weights_learn_steps_smaller_than_their_precision():
    layer = layer_with_grad(1.0, torch.bfloat16)  # near 1 it has steps of 4e-3
    optimizer = ModelOptimizer(layer, OptimizerSettings(lr=1e-3))
    for _ in range(8):
        layer.weight.sum().backward()
        optimizer.step()
    assert optimizer.tensors()["weight.master"].item() == pytest.approx(0.992, abs=1e-4)
    assert layer.weight.item() == pytest.approx(0.992, abs=2e-3)


def test_micro_batches_of_narrow_weights_add_up_in_float32():
    layer = layer_with_grad(1.0, torch.bfloat16)
    layer.weight.grad = None
    optimizer = ModelOptimizer(layer, OptimizerSettings(lr=1e-3, grad_clip=0.0))
    for factor in (256.0, 1.0):  # near 256 bfloat16 has steps of 2
        (layer.weight * factor).sum().backward()
    assert optimizer.step().grad_norm == 257.0


def test_the_template_is_of_the_state_after_a_step_and_takes_no_memory():
    layer = layer_with_grad(1.0, torch.bfloat16)
    optimizer = ModelOptimizer(layer, OptimizerSettings(lr=0.1))
    template = optimizer.template()
    optimizer.step()
    state = optimizer.tensors()
    assert template.keys() == state.keys()
    for name, tensor in state.items():
        assert (template[name].shape, template[name].dtype) == (tensor.shape, tensor.dtype)
    places = {t.data_ptr() for name, t in template.items() if not name.endswith(".step")}
    assert places == {state["weight.master"].data_ptr()}


def model_with_grads(is_large):
    """Two layers; a large model has weights beside them that are not trained and take no room."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3))
    for weight in model.parameters():
        nn.init.normal_(weight, generator=generator)
        weight.grad = torch.randn(weight.shape, generator=generator)
    if is_large:
        model.frozen = nn.Parameter(torch.zeros(1).expand(LARGE), requires_grad=False)
    return model


def test_a_large_models_fused_step_is_the_plain_one_and_goes_on_from_its_state():
    settings = OptimizerSettings(lr=0.1, weight_decay=0.1, grad_clip=1.0)
    found = []
    for is_large in (False, True):
        model = model_with_grads(is_large)
        optimizer = ModelOptimizer(model, settings)
        assert optimizer._adamw.defaults["fused"] == is_large
        optimizer.step()
        again = model_with_grads(is_large)
        other = ModelOptimizer(again, settings)
        masters = {f"{n}.master": p.detach() for n, p in model.named_parameters()}
        other.load(optimizer.tensors() | masters, optimizer.num_steps, 0)
        for each, stepped in ((optimizer, model), (other, again)):
            for weight in (p for p in stepped.parameters() if p.requires_grad):
                weight.grad = torch.full_like(weight, 0.3)
            each.step()
        for a, b in zip(model.parameters(), again.parameters(), strict=True):
            assert torch.equal(a, b)
        found.append([p.detach() for p in model.parameters() if p.requires_grad])
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)
