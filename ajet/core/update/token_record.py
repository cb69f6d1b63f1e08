"""Records what a micro-batch computed for each of its tokens (trajectory/trained_tokens.py), from
tensors that the update has anyway."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.losses.token_loss import TokenLoss
from ajet.core.trajectory.trained_tokens import NUMBERS, TrainedTokens
from ajet.core.update.layouts.layout import Row


@torch.no_grad()
def record_tokens(
    tokens: TrainedTokens,
    rows: Sequence[Row],
    numbers: Mapping[str, Tensor],
    loss: TokenLoss | None,
    at: Tensor | None,
) -> None:
    """Adds the numbers ``[M]`` of the rows' trained tokens, and the ratios and cuts of the policy
    loss, which has values only for the tokens at the indices `at` (None: for all)."""
    size = sum(len(row.positions) for row in rows)
    if not size:
        return
    by_name = dict(numbers)
    cuts: Mapping[str, Tensor] = {}
    if loss is not None:
        by_name["ratios"], cuts = loss.ratio_M, loss.cuts
    names = [*by_name, *cuts]
    columns = [
        _spread(values, at if name in ("ratios", *cuts) else None, size)
        for name, values in {**by_name, **cuts}.items()
    ]
    values_KM = torch.stack(columns).cpu().numpy()  # one copy from the GPU instead of K
    start = 0
    for row in rows:
        stop = start + len(row.positions)
        _add_row(tokens, row, dict(zip(names, values_KM[:, start:stop], strict=True)))
        start = stop


def _add_row(tokens: TrainedTokens, row: Row, values: Mapping[str, NDArray[np.float32]]) -> None:
    """Adds the numbers of one row to the turns in which its tokens were sampled."""
    sampled_at = row.positions + 1  # a position predicts the token after it
    for span in row.sample.spans:
        begin, end = np.searchsorted(sampled_at, (span.start, span.stop))
        if begin == end:
            continue
        within = sampled_at[begin:end] - span.start
        for name, values_T in values.items():
            part = values_T[begin:end]
            if name in NUMBERS:
                recorded = tokens.row(row.episode_id, span.turn_index, name, span.stop - span.start)
                recorded[within] = part
            elif (is_cut := part > 0).any():  # NaN, where there is no policy loss, is not above 0
                tokens.cut(row.episode_id, span.turn_index, name, within[is_cut].tolist())


def _spread(values: Tensor, at: Tensor | None, size: int) -> Tensor:
    """Returns the values in float32 at their indices among `size` tokens, NaN elsewhere."""
    values = values.detach().to(torch.float32)
    if at is None:
        return values
    spread_M = values.new_full((size,), float("nan"))
    spread_M[at] = values
    return spread_M
