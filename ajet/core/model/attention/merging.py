"""Two softmaxes over different keys become one, by their log-sum-exps."""

from torch import Tensor


def merge(out: Tensor, lse: Tensor, piece_out: Tensor, piece_lse: Tensor) -> None:
    """Adds a piece ``[N, heads, d]``, with its log-sum-exp ``[N, heads]``, to `out` and `lse`."""
    # Each output is divided by exp(its lse); the merged one by exp(total). Only differences of
    # log-sum-exps are exponentiated, so nothing overflows.
    total = lse.logaddexp(piece_lse)
    out.mul_((lse - total).exp_().unsqueeze(-1).to(out.dtype))
    out.add_(piece_out * (piece_lse - total).exp_().unsqueeze(-1).to(out.dtype))
    lse.copy_(total)
