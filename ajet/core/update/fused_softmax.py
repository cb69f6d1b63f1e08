"""Log-probabilities and entropies of some tokens on CUDA: logits are read once and stay narrow.

    forward     slice by slice: logits = features @ weight.T, one kernel for log-sum-exp and entropy
    backward    the same logits once more, one kernel that puts their gradient in their place, and
                two products

The logits of a slice, in the model's dtype, are all that is in memory beside the head's gradient,
which is added up in float32 over the slices. With z = logits / temperature and p = softmax(z) of a
row, summed over the tokens m that read the row, with d_m and e_m the gradients of their
log-probabilities and entropies,

    d z[v] = sum of d_m of the tokens that are v - p[v] * (sum d_m + sum e_m * (log p[v] + H))

The kernel writes the second part. At the chosen tokens both are added in float32 and rounded once:
where p is close to 1 they nearly cancel.

Not covered: devices other than CUDA (kept_softmax.py, sliced_softmax.py).
"""

from typing import Any

import torch
from torch import Tensor

from ajet.core.model.kernels.devices import CudaKernels
from ajet.core.model.precision import wide_dtype
from ajet.core.update.sliced_softmax import slices, wide_product


def fused_softmax(
    kernels: CudaKernels,
    features_UD: Tensor,
    weight_VD: Tensor,
    index_M: Tensor,
    targets_M: Tensor,
    temperature: float,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each token, ``targets_M`` in row ``index_M``, and the entropy
    of its row, in float32; computes so many `rows` of logits at once.
    """
    return _FusedSoftmax.apply(
        features_UD, weight_VD, index_M, targets_M, 1 / temperature, rows, kernels
    )


class _FusedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features_UD: Tensor,
        weight_VD: Tensor,
        index_M: Tensor,
        targets_M: Tensor,
        scale: float,
        rows: int,
        kernels: CudaKernels,
    ) -> tuple[Tensor, Tensor]:
        num_rows = len(features_UD)
        dtype = wide_dtype(features_UD.dtype)
        chosen_M = features_UD.new_empty(len(index_M), dtype=dtype)
        log_sum_U, entropy_U = features_UD.new_empty(2, num_rows, dtype=dtype)
        # A rank of several may have none of a micro-batch's tokens; its gradients are 0.
        parts = list(slices(num_rows, index_M, rows)) if num_rows else []
        logits_SV = features_UD.new_empty(min(rows, num_rows), len(weight_VD))
        for part, tokens in parts:
            logits = logits_SV[: part.stop - part.start]
            torch.mm(features_UD[part], weight_VD.T, out=logits)
            chosen = logits[index_M[tokens] - part.start, targets_M[tokens]]
            chosen_M[tokens] = chosen.to(dtype)
            log_sum_U[part], entropy_U[part] = kernels.softmax_sums(logits, scale)
        logprobs_M = chosen_M.mul_(scale) - log_sum_U[index_M]
        ctx.scale, ctx.parts, ctx.kernels, ctx.num_at_once = scale, parts, kernels, len(logits_SV)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(
            *(features_UD, weight_VD, index_M, targets_M, logprobs_M, log_sum_U, entropy_U)
        )
        return logprobs_M, entropy_U[index_M]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        features_UD, weight_VD, index_M, targets_M, logprobs_M, log_sum_U, entropy_U = (
            ctx.saved_tensors
        )
        needs_features, needs_weight, *_ = ctx.needs_input_grad

        def by_row(grad_M: Tensor) -> Tensor:
            # index_put_ adds in a fixed order on a GPU, too; index_add_ does not.
            return torch.zeros_like(log_sum_U).index_put_((index_M,), grad_M, accumulate=True)

        grad_M, grad_entropy_M = grads
        grad_M = torch.zeros_like(logprobs_M) if grad_M is None else grad_M * ctx.scale
        d_sum_U, d_entropy_U = by_row(grad_M), None
        factor_M = d_sum_U[index_M]
        if grad_entropy_M is not None:
            d_entropy_U = by_row(grad_entropy_M * ctx.scale)
            factor_M = factor_M + d_entropy_U[index_M] * (logprobs_M + entropy_U[index_M])
        at_token_M = _summed(grad_M, index_M * len(weight_VD) + targets_M)
        at_token_M = (at_token_M - logprobs_M.exp() * factor_M).to(features_UD.dtype)

        d_features = torch.empty_like(features_UD) if needs_features else None
        d_weight: Tensor | None = None
        logits_SV = features_UD.new_empty(ctx.num_at_once, len(weight_VD))
        for part, tokens in ctx.parts:
            d_logits = logits_SV[: part.stop - part.start]
            torch.mm(features_UD[part], weight_VD.T, out=d_logits)
            ctx.kernels.softmax_backward(
                d_logits,
                ctx.scale,
                (log_sum_U[part], entropy_U[part]),
                d_sum_U[part],
                None if d_entropy_U is None else d_entropy_U[part],
            )
            # Several tokens of a row may be the same one: each writes the same number.
            at = (index_M[tokens] - part.start, targets_M[tokens])
            d_logits.index_put_(at, at_token_M[tokens])
            if d_features is not None:
                torch.mm(d_logits, weight_VD, out=d_features[part])
            if needs_weight:
                of_slice = wide_product(d_logits.T, features_UD[part])
                d_weight = of_slice if d_weight is None else d_weight.add_(of_slice)
        if needs_weight and not ctx.parts:
            d_weight = torch.zeros_like(weight_VD)
        return d_features, d_weight, None, None, None, None, None


def _summed(values_M: Tensor, keys_M: Tensor) -> Tensor:
    """Returns, for each value, the sum of those with its key, added up in a fixed order."""
    sorted_M, order_M = torch.sort(keys_M, stable=True)
    is_new_M = torch.cat((sorted_M[:1] < 0, sorted_M[1:] != sorted_M[:-1]))
    which_M = torch.empty_like(keys_M)
    which_M[order_M] = is_new_M.cumsum(0)
    sums_M = torch.zeros_like(values_M).index_put_((which_M,), values_M, accumulate=True)
    return sums_M[which_M]
