"""Log-probabilities and entropies of some tokens on CUDA: logits are read once and stay narrow.
Suffixes: U rows of features, S rows of a slice, M tokens (several may read one row), V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ajet.core.model.precision import wide_dtype
from ajet.core.update.softmax import slices, wide_product

if TYPE_CHECKING:
    from ajet.core.model.kernels.triton_kernels import TritonKernels


def fused_softmax(
    kernels: TritonKernels,
    features_UD: Tensor,
    weight_VD: Tensor,
    index_M: Tensor,
    targets_M: Tensor,
    temperature: float,
    rows: int,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of each token, ``targets_M`` in row ``index_M``, and the entropy
    of its row, in float32. `rows` is the number of rows of a slice."""
    return _FusedSoftmax.apply(
        features_UD, weight_VD, index_M, targets_M, 1 / temperature, rows, kernels
    )


class _FusedSoftmax(torch.autograd.Function):
    """Slice by slice: forward, one kernel for log-sum-exp and entropy of the logits; backward, the
    same logits once more, one kernel that overwrites them with their gradient, and two products.

    With z = logits / temperature and p = softmax(z) of a row, summed over the tokens m that read
    the row, with d_m and e_m the gradients of their log-probabilities and entropies,

        d z[v] = sum of d_m of the tokens that are v - p[v] * (sum d_m + sum e_m * (log p[v] + H))
    """

    @staticmethod
    def forward(
        ctx: Any,
        features_UD: Tensor,
        weight_VD: Tensor,
        index_M: Tensor,
        targets_M: Tensor,
        scale: float,
        rows: int,
        kernels: TritonKernels,
    ) -> tuple[Tensor, Tensor]:
        num_rows = len(features_UD)
        dtype = wide_dtype(features_UD.dtype)
        chosen_M = features_UD.new_empty(len(index_M), dtype=dtype)
        log_sum_U, entropy_U = features_UD.new_empty(2, num_rows, dtype=dtype)
        # With several ranks, one may have no token of a micro-batch; its gradients are 0.
        row_slices = list(slices(num_rows, index_M, rows)) if num_rows else []
        # One buffer for all slices, in the model's dtype: the only tensor of the vocabulary's size.
        logits_SV = features_UD.new_empty(min(rows, num_rows), len(weight_VD))
        for part, tokens in row_slices:
            logits = logits_SV[: part.stop - part.start]
            torch.mm(features_UD[part], weight_VD.T, out=logits)
            chosen = logits[index_M[tokens] - part.start, targets_M[tokens]]
            chosen_M[tokens] = chosen.to(dtype)
            log_sum_U[part], entropy_U[part] = kernels.softmax_sums(logits, scale)
        logprobs_M = chosen_M.mul_(scale) - log_sum_U[index_M]
        ctx.scale, ctx.row_slices, ctx.kernels = scale, row_slices, kernels
        ctx.slice_rows = len(logits_SV)
        ctx.set_materialize_grads(False)  # None where the loss does not use an output
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
        # Times `scale` (1 / temperature): the products need the gradient of logits, not of z.
        grad_M = torch.zeros_like(logprobs_M) if grad_M is None else grad_M * ctx.scale
        d_sum_U, d_entropy_U = by_row(grad_M), None
        # factor is what the formula multiplies p with, here at the chosen tokens, where log p is
        # known from the forward pass.
        factor_M = d_sum_U[index_M]
        if grad_entropy_M is not None:
            d_entropy_U = by_row(grad_entropy_M * ctx.scale)
            factor_M = factor_M + d_entropy_U[index_M] * (logprobs_M + entropy_U[index_M])
        # The kernel writes only -p * factor. At the chosen tokens the two parts of the formula are
        # added here, in float32, and rounded once: where p is close to 1 they nearly cancel.
        at_token_M = _summed(grad_M, index_M * len(weight_VD) + targets_M)
        at_token_M = (at_token_M - logprobs_M.exp() * factor_M).to(features_UD.dtype)

        d_features = torch.empty_like(features_UD) if needs_features else None
        d_weight: Tensor | None = None
        logits_SV = features_UD.new_empty(ctx.slice_rows, len(weight_VD))
        for part, tokens in ctx.row_slices:
            d_logits = logits_SV[: part.stop - part.start]
            torch.mm(features_UD[part], weight_VD.T, out=d_logits)
            ctx.kernels.softmax_backward(
                d_logits,
                ctx.scale,
                (log_sum_U[part], entropy_U[part]),
                d_sum_U[part],
                None if d_entropy_U is None else d_entropy_U[part],
            )
            # Several samples may have the same token after a row: all write the same number.
            at = (index_M[tokens] - part.start, targets_M[tokens])
            d_logits.index_put_(at, at_token_M[tokens])
            if d_features is not None:
                torch.mm(d_logits, weight_VD, out=d_features[part])
            if needs_weight:
                # In float32 over the slices: bfloat16 would round the sum once for each.
                slice_grad = wide_product(d_logits.T, features_UD[part])
                d_weight = slice_grad if d_weight is None else d_weight.add_(slice_grad)
        if needs_weight and not ctx.row_slices:
            d_weight = torch.zeros_like(weight_VD)
        return d_features, d_weight, None, None, None, None, None


def _summed(values_M: Tensor, keys_M: Tensor) -> Tensor:
    """Returns, for each value, the sum of the values with its key, added up in a fixed order."""
    sorted_M, order_M = torch.sort(keys_M, stable=True)
    # False for the first, since keys are not negative: numbers count from 0. torch.unique would
    # wait for the GPU to know how many keys there are.
    is_new_M = torch.cat((sorted_M[:1] < 0, sorted_M[1:] != sorted_M[:-1]))
    number_M = torch.empty_like(keys_M)
    number_M[order_M] = is_new_M.cumsum(0)
    sums_M = torch.zeros_like(values_M).index_put_((number_M,), values_M, accumulate=True)
    return sums_M[number_M]
