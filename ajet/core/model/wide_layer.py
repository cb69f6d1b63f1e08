"""Linear layers of wide models on a CPU, and of all on CUDA. The backward pass computes norms, the
activation and its product again, which is cheap: autograd alone would keep twice as much, 1.3 MB a
token for a model of 135 million parameters in float32. Where `is_wide` is false the caller uses
torch's layers: narrow models on a CPU, where calls cost more than products, CUDA without Triton,
float64, adapters, other devices.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ajet.core.model.kernels.devices import layer_kernels_for
from ajet.core.model.kernels.functions import kernels_for
from ajet.core.model.precision import to_wide_dtype

MIN_WIDTH = 256
MIN_TOKENS = 64  # fewer are limited by reading the weights, which both libraries do equally fast
TRANSPOSED = 1 << 13
"""The outputs whose gradient oneDNN computes in one product: it copies its transposed operands."""


def is_wide(x_ND: Tensor, *linears: nn.Module) -> bool:
    """Tells whether this file computes these layers for `x`."""
    if x_ND.device.type == "cpu":
        is_covered = (
            x_ND.dtype in (torch.float32, torch.bfloat16)
            and x_ND.shape[0] >= MIN_TOKENS
            and x_ND.shape[1] >= MIN_WIDTH
        )
    else:
        is_covered = layer_kernels_for(x_ND) is not None
    return is_covered and all(type(module) is nn.Linear for module in linears)


def linear(x_ND: Tensor, module: Any) -> Tensor:
    return _computed(_Linear, x_ND, module.weight, module.bias)


def linears_of_norm(x_ND: Tensor, norm: Any, *linears: Any) -> tuple[Tensor, ...]:
    """Returns ``linear(rms_norm(x))`` of each linear layer."""
    weights = [module.weight for module in linears]
    biases = [module.bias for module in linears]
    return _computed(_LinearsOfNorm, x_ND, norm.weight, norm.variance_epsilon, *weights, *biases)


def gated_mlp(x_ND: Tensor, norm: Any, mlp: Any) -> Tensor:
    """Returns ``x + mlp(rms_norm(x))`` of a gated MLP without biases."""
    weights = (mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight)
    return _computed(_GatedMLP, x_ND, norm.weight, norm.variance_epsilon, *weights)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Applies the rotary position: the halves (l, r) become (l cos - r sin, r cos + l sin)."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, swapped, signed_sin)


def rotated(x_NHd: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Returns the same as `rotate`, in one pass where there is a kernel."""
    if layer_kernels_for(x_NHd) is not None:
        return _computed(_Rotated, x_NHd, cos, signed_sin)
    return rotate(x_NHd, cos, signed_sin)


def normed(x_ND: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Returns ``x * rsqrt(mean(x^2) + eps) * weight``."""
    kernels = layer_kernels_for(x_ND)
    if kernels is not None:
        return kernels.rms_norm(x_ND, weight_D, eps)
    return F.rms_norm(x_ND, weight_D.shape, weight_D, eps)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Returns ``silu(gate) * up``; on a CPU the tensors must be contiguous."""
    kernels = layer_kernels_for(gate)
    return F.silu(gate).mul_(up) if kernels is None else kernels.gate(gate, up)


def product(x_ND: Tensor, weight_OD: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns ``x @ weight.T + bias``; either may be a transposed view."""
    # torch gives float32 products to MKL, which is slow on some processors: 207 GFLOP/s on two
    # cores of an AMD EPYC 9005, where oneDNN has 300 to 480. bfloat16 goes to oneDNN anyway.
    on_cpu = x_ND.device.type == "cpu"
    if on_cpu and x_ND.dtype == torch.float32 and torch.backends.mkldnn.is_available():
        return torch.ops.mkldnn._linear_pointwise(x_ND, weight_OD, bias, "none", [], "")
    return F.linear(x_ND, weight_OD, bias)


def weight_gradient(grad_NO: Tensor, x_NI: Tensor) -> Tensor:
    """Returns ``grad.T @ x``, the gradient of the weight of a linear layer."""
    if x_NI.device.type != "cpu":
        return grad_NO.T @ x_NI
    # 505 to 520 GFLOP/s by the kernel, where oneDNN has 404 to 439.
    kernels = kernels_for(x_NI)
    if kernels is not None and x_NI.shape[1] >= MIN_WIDTH:
        return kernels.weight_gradient(grad_NO, x_NI)
    out_OI = x_NI.new_empty(grad_NO.shape[1], x_NI.shape[1])
    blocks = zip(grad_NO.split(TRANSPOSED, 1), out_OI.split(TRANSPOSED), strict=True)
    for grad_NP, out_PI in blocks:
        out_PI.copy_(product(grad_NP.T, x_NI.T))
    return out_OI


class _NothingKept:
    """The context of a forward pass without a backward pass."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        pass


def _computed(function: Any, *args: Any) -> Any:
    """Returns ``function.apply(*args)``. Without gradients it calls the forward directly: `apply`
    takes 4 to 10 microseconds of the CPU, as long as a launch on a GPU."""
    if torch.is_grad_enabled():
        return function.apply(*args)
    return function.forward(_NothingKept(), *args)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, weight), grad = ctx.saved_tensors, grads[0]
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            product(grad, weight.T) if needs_x else None,
            weight_gradient(grad, x) if needs_weight else None,
            grad.sum(0) if needs_bias else None,
        )


class _Rotated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, signed_sin)
        return _rotate(x, cos, signed_sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, signed_sin = ctx.saved_tensors
        # The transposed rotation: signs of the two halves change places.
        swapped = signed_sin.roll(signed_sin.shape[-1] // 2, dims=-1)
        return _rotate(grads[0].contiguous(), cos, swapped), None, None


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    kernels, out = layer_kernels_for(x), x.new_empty(x.shape)
    assert kernels is not None
    kernels.rotate(x, cos, signed_sin, out)
    return out


class _LinearsOfNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, norm: Tensor, eps: float, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.eps = eps
        num = len(parameters) // 2
        weights, biases = parameters[:num], parameters[num:]
        ctx.save_for_backward(x, norm, *weights)
        h = normed(x, norm, eps)
        return tuple(product(h, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, norm, *weights = ctx.saved_tensors
        _, needs_norm, _, *needs = ctx.needs_input_grad
        h = normed(x, norm, ctx.eps)
        d_weights = _weight_grads(grads, h, needs)
        # `needs` has the weights first, then the biases (which may be None).
        d_biases = [
            grad.sum(0) if needed else None
            for grad, needed in zip(grads, needs[len(weights) :], strict=True)
        ]
        d_h = _input_grad(grads, weights)
        d_x, d_norm = _rms_norm_backward(d_h, x, norm, ctx.eps)
        return (d_x, d_norm if needs_norm else None, None, *d_weights, *d_biases)


class _GatedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, eps: float, *weights: Tensor) -> Tensor:
        ctx.eps = eps
        gate_weight, up_weight, down_weight = weights
        h = normed(x, norm, eps)
        gate, up = product(h, gate_weight), product(h, up_weight)
        ctx.save_for_backward(x, norm, gate, up, *weights)
        return product(gated(gate, up), down_weight).add_(x)  # the residual

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, norm, gate, up, gate_weight, up_weight, down_weight = ctx.saved_tensors
        _, needs_norm, _, *needs = ctx.needs_input_grad
        grad = grads[0].contiguous()
        # The gradient of silu(gate) * up is overwritten with one of its factors'.
        d_gated = product(grad, down_weight.T)
        kernels = layer_kernels_for(gate)
        if kernels is not None:
            gated, d_gate, d_up = kernels.gate_backward(d_gated, gate, up)
        else:
            activation = F.silu(gate)
            gated, d_up = activation * up, activation.mul_(d_gated)
            d_gate = torch.ops.aten.silu_backward(d_gated.mul_(up), gate)
        (d_down,) = _weight_grads((grad,), gated, needs[2:])
        h = normed(x, norm, ctx.eps)
        d_weights = _weight_grads((d_gate, d_up), h, needs)
        d_h = _input_grad((d_gate, d_up), (gate_weight, up_weight))
        # `grad` also reaches x directly, by the residual.
        d_x, d_norm = _rms_norm_backward(d_h, x, norm, ctx.eps, added=grad)
        return (d_x, d_norm if needs_norm else None, None, *d_weights, d_down)


def _weight_grads(grads: tuple[Tensor, ...], h: Tensor, needs: list[bool]) -> list[Tensor | None]:
    return [
        weight_gradient(grad, h) if needed else None
        for grad, needed in zip(grads, needs, strict=False)
    ]


def _input_grad(grads: tuple[Tensor, ...], weights: Any) -> Tensor:
    total = product(grads[0], weights[0].T)
    for grad, weight in zip(grads[1:], weights[1:], strict=True):
        if total.device.type == "cpu":
            total += product(grad, weight.T)
        else:
            total.addmm_(grad, weight)  # the sum is part of the product
    return total


def _rms_norm_backward(
    d_h: Tensor, x: Tensor, norm: Tensor, eps: float, added: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns the gradients of ``x``, plus `added`, and of ``norm`` for
    ``h = x * rsqrt(mean(x^2) + eps) * norm``."""
    kernels = layer_kernels_for(x)
    if kernels is not None:
        return kernels.rms_norm_backward(d_h, x.contiguous(), norm, eps, added)
    wide_x, grad = to_wide_dtype(x), to_wide_dtype(d_h)
    scale = (wide_x.square().mean(-1, keepdim=True) + eps).rsqrt_()
    normed = wide_x * scale
    d_norm = (grad * normed).sum(0)
    d_normed = grad * norm
    # The scale depends on x too: the part of the gradient along x is removed.
    along = (d_normed * normed).mean(-1, keepdim=True)
    d_x = d_normed.addcmul_(normed, along, value=-1).mul_(scale).to(x.dtype)
    return d_x if added is None else d_x.add_(added), d_norm.to(norm.dtype)
