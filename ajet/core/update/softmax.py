"""Log-probabilities of some tokens, sliced: without keeping the logits of the whole vocabulary; or
with its probabilities kept, where they fit into memory. (fused_softmax.py is faster on CUDA with
Triton.) Suffixes: U rows of features, M tokens, K distinct pairs of row and token, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ajet.core.model.kernels.functions import kernels_for
from ajet.core.model.precision import to_wide_dtype, wide_dtype
from ajet.core.model.wide_layer import MIN_WIDTH, product, weight_gradient


def sliced_softmax(
    features_UD: Tensor,
    weight_VD: Tensor,
    index_M: Tensor,
    targets_M: Tensor,
    temperature: float,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each token, ``targets_M`` in row ``index_M``, and the entropy
    of its row, which has no gradient. `rows` is the number of rows of a slice: one slice of logits
    is in memory, and the backward pass computes it again. That reads the head's weight twice for
    each slice, so slices should be long."""
    return _SlicedSoftmax.apply(features_UD, weight_VD, index_M, targets_M, temperature, rows)


class _SlicedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_UD: Tensor,
        weight_VD: Tensor,
        index_M: Tensor,
        targets_M: Tensor,
        temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        dtype = wide_dtype(features_UD.dtype)
        logprobs_M = features_UD.new_empty(len(index_M), dtype=dtype)
        entropy_U = features_UD.new_empty(len(features_UD), dtype=dtype)
        for part, tokens in slices(len(features_UD), index_M, rows):
            logprobs = _logprobs(features_UD[part], weight_VD, temperature)
            logprobs_M[tokens] = logprobs[index_M[tokens] - part.start, targets_M[tokens]]
            entropy_U[part] = -logprobs.exp().mul_(logprobs).sum(-1)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.save_for_backward(features_UD, weight_VD, index_M, targets_M)
        entropy_M = entropy_U[index_M]
        ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features_UD, weight_VD, index_M, targets_M = ctx.saved_tensors
        needs_features, needs_weight, *_ = ctx.needs_input_grad
        grad_M = grads[0] / ctx.temperature
        d_features = torch.empty_like(features_UD) if needs_features else None
        d_weight = None
        if needs_weight:
            # In float32, and rounded once at the end, as the gradient of a single slice is.
            d_weight = torch.zeros_like(weight_VD, dtype=wide_dtype(weight_VD.dtype))
        for part, tokens in slices(len(features_UD), index_M, ctx.rows):
            d_logits = _logprobs(features_UD[part], weight_VD, ctx.temperature).exp_()
            rows, grad = index_M[tokens] - part.start, grad_M[tokens]
            # index_put_ adds in a fixed order on a GPU, too; index_add_ does not.
            # d z = sum of the gradients at the token - p * their sum over the row's tokens.
            sums = grad.new_zeros(len(d_logits)).index_put_((rows,), grad, accumulate=True)
            d_logits.mul_(-sums.unsqueeze(1))
            d_logits.index_put_((rows, targets_M[tokens]), grad, accumulate=True)
            d_logits = d_logits.to(features_UD.dtype)
            if d_features is not None:
                d_features[part] = d_logits @ weight_VD
            if d_weight is not None:
                d_weight += wide_product(d_logits.T, features_UD[part])
        return d_features, d_weight, None, None, None, None


def slices(num_rows: int, index_M: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
    """Yields each slice of rows, and the indices of the tokens that read a row of it."""
    order_M = torch.argsort(index_M, stable=True)
    starts = range(0, num_rows, rows)
    borders = torch.tensor([*starts[1:]], device=index_M.device)
    ends = torch.searchsorted(index_M[order_M], borders).cpu()
    for start, tokens in zip(starts, order_M.tensor_split(ends), strict=True):
        yield slice(start, min(start + rows, num_rows)), tokens


def _logprobs(features_SD: Tensor, weight_VD: Tensor, temperature: float) -> Tensor:
    """Returns log-probabilities ``[S, V]`` of a slice, in float32 or wider."""
    logits_SV = to_wide_dtype(F.linear(features_SD, weight_VD))
    return torch.log_softmax(logits_SV if temperature == 1.0 else logits_SV / temperature, dim=-1)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Returns ``a @ b`` in float32 or wider, without rounding it to the dtype of `a` first."""
    dtype = wide_dtype(a.dtype)
    has_kernel = a.device.type == "cuda" and "dtype" in torch.ops.aten.mm.overloads()  # torch 2.8
    if a.dtype != dtype and has_kernel:
        return torch.mm(a, b, out_dtype=dtype)
    return a.to(dtype) @ b.to(dtype)


SLICE = 1 << 20  # logits of one softmax: 4 MiB in float32, which stay in a processor's cache


def kept_softmax(
    features_UD: Tensor, weight_VD: Tensor, index_M: Tensor, targets_M: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Returns the same as `sliced_softmax`, with the probabilities of the whole vocabulary kept in
    the logits' place: the backward pass needs two products, where computing the logits again would
    need three."""
    return _KeptSoftmax.apply(features_UD, weight_VD, index_M, targets_M, temperature)


class _KeptSoftmax(torch.autograd.Function):
    """The kept probabilities p become the gradient in place, so there is one matrix of all logits:

    d logits[u, v] = sum of d_m of row u's tokens that are v, - sum of d_m of row u * p
    """

    @staticmethod
    def forward(
        ctx: Any,
        features_UD: Tensor,
        weight_VD: Tensor,
        index_M: Tensor,
        targets_M: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        kept_UV = product(features_UD, weight_VD)
        is_wide = features_UD.shape[1] >= MIN_WIDTH
        logprobs_M, entropy_U = _softmax(kept_UV, index_M, targets_M, temperature, is_wide)
        ctx.temperature = temperature
        ctx.save_for_backward(features_UD, weight_VD, index_M, targets_M, logprobs_M, kept_UV)
        entropy_M = entropy_U[index_M]
        ctx.mark_non_differentiable(entropy_M)
        return logprobs_M, entropy_M

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        features_UD, weight_VD, index_M, targets_M, logprobs_M, kept_UV = ctx.saved_tensors
        grad_M = grads[0] / ctx.temperature
        sum_U = grad_M.new_zeros(len(kept_UV)).index_add_(0, index_M, grad_M)
        # Several samples may have the same token after a row: each pair is written once.
        pairs_M = index_M * kept_UV.shape[1] + targets_M
        pairs_K, pair_M = torch.unique(pairs_M, return_inverse=True)
        # At the tokens the gradient is computed in float32, from the log-probabilities: in
        # bfloat16 the two parts would nearly cancel where p is close to 1.
        at_pair_K = grad_M.new_zeros(len(pairs_K)).index_add_(0, pair_M, grad_M)
        share_M = logprobs_M.exp() * sum_U[index_M]
        at_pair_K -= torch.empty_like(at_pair_K).index_copy_(0, pair_M, share_M)
        kept_UV *= -sum_U.unsqueeze(1).to(kept_UV.dtype)
        kept_UV.view(-1)[pairs_K] = at_pair_K.to(kept_UV.dtype)
        needs_features, needs_weight, *_ = ctx.needs_input_grad
        return (
            product(kept_UV, weight_VD.T) if needs_features else None,
            weight_gradient(kept_UV, features_UD) if needs_weight else None,
            None,
            None,
            None,
        )


def _softmax(
    logits_UV: Tensor, index_M: Tensor, targets_M: Tensor, temperature: float, is_wide: bool
) -> tuple[Tensor, Tensor]:
    """Overwrites the logits with the probabilities; returns the log-probability of each token and
    the entropy of each row."""
    kernels = kernels_for(logits_UV) if is_wide else None
    if kernels is not None:
        # Read before the kernel overwrites the logits.
        chosen_M = logits_UV[index_M, targets_M].float() / temperature
        entropy_U, log_sum_U = kernels.softmax(logits_UV, temperature)
        return chosen_M - log_sum_U[index_M], entropy_U
    dtype = wide_dtype(logits_UV.dtype)
    entropy_U = logits_UV.new_empty(len(logits_UV), dtype=dtype)
    logprobs_M = logits_UV.new_empty(len(index_M), dtype=dtype)
    # Tokens ordered by row, so that those of a slice of rows are a range.
    order_M = torch.argsort(index_M, stable=True)
    step = max(1, SLICE // logits_UV.shape[1])
    starts = range(0, len(logits_UV), step)
    ends = torch.searchsorted(index_M[order_M], torch.tensor([*starts[1:], len(logits_UV)]))
    for start, tokens in zip(starts, order_M.tensor_split(ends[:-1]), strict=True):
        rows = slice(start, start + step)
        logits = to_wide_dtype(logits_UV[rows])
        logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, -1)
        logprobs_M[tokens] = logprobs[index_M[tokens] - start, targets_M[tokens]]
        probabilities = logprobs.exp()
        logits_UV[rows] = probabilities
        entropy_U[rows] = -probabilities.mul_(logprobs).sum(-1)
    return logprobs_M, entropy_U
