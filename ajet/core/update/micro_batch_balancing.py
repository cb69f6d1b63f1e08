"""Balances micro-batches over data-parallel ranks: the same number for each, of similar size.

    rows ─> micro-batches within the budget, as even as possible ─> assigned, largest first

    sizes 7 5 4 4 2 1, two ranks      7 4 1 | 5 4 2
    sizes 6 4 3, two ranks            6 idle | 4 3

All ranks make every forward pass of a sharded model together: a rank that has no micro-batch left
takes part with an idle one, a single token that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Layout, Row, rows_of, scatter_to_samples
from ajet.core.update.ranks import Ranks

Split = Callable[[int], list[list[Row]]]
"""Splits into micro-batches for a budget of computed tokens."""

NO_POSITIONS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class BalancedMicroBatches:
    """Holds all micro-batches of a mini-batch, and those that this rank computes (`local`)."""

    micro_batches: list[list[Row]]
    local: list[list[Row]]


def balance_micro_batches(
    rows: Sequence[Row], layout: Layout, budget: int, ranks: Ranks
) -> BalancedMicroBatches:
    """Splits `rows` into micro-batches and assigns them to the ranks.

    Without rows there is nothing to compute on any rank.
    """
    if not rows:
        return BalancedMicroBatches([], [])
    if ranks.size == 1:
        micro_batches = layout.split(rows, budget)
        return BalancedMicroBatches(micro_batches, micro_batches)
    micro_batches = _split_evenly(lambda tokens: layout.split(rows, tokens), budget, ranks.dp_size)
    sizes = [layout.num_computed(micro_batch) for micro_batch in micro_batches]
    by_rank = assign_to_ranks(sizes, ranks.dp_size)
    one_token = rows[0].input_ids[:1]
    idle = [replace(rows[0], input_ids=one_token, positions=NO_POSITIONS, targets=NO_POSITIONS)]
    local = [micro_batches[index] for index in by_rank[ranks.dp_rank]]
    local += [idle] * (max(map(len, by_rank)) - len(local))
    return BalancedMicroBatches(
        micro_batches, [layout.local_rows(micro_batch) for micro_batch in local]
    )


def numbers_of_samples(
    samples: Sequence[TrainingSample],
    compute: Callable[[Sequence[Row]], Tensor],
    layout: Layout,
    budget: int,
    ranks: Ranks,
) -> list[NDArray[np.float32]]:
    """Returns what `compute` gives for the trained tokens of a micro-batch, over all micro-batches
    of the samples: an array for each sample, as long as the sample, with 0 at all other tokens."""
    own = balance_micro_batches(rows_of(samples), layout, budget, ranks).local
    return scatter_to_samples(samples, ((rows, compute(rows)) for rows in own), ranks)


def assign_to_ranks(sizes: Sequence[int], dp_size: int) -> list[list[int]]:
    """Returns the indices of `sizes` for each rank.

    The largest come first, each for the least loaded rank that may take more. No rank has more than
    the mean number, rounded up.
    """
    most = -(-len(sizes) // dp_size)
    by_rank: list[list[int]] = [[] for _ in range(dp_size)]
    loads = [0] * dp_size
    for index in sorted(range(len(sizes)), key=lambda p: (-sizes[p], p)):
        least = min(
            (i for i in range(dp_size) if len(by_rank[i]) < most), key=lambda i: (loads[i], i)
        )
        by_rank[least].append(index)
        loads[least] += sizes[index]
    return by_rank


def _split_evenly(split: Split, budget: int, dp_size: int) -> list[list[Row]]:
    """Splits with the smallest budget that needs no more passes per rank than `budget` does."""
    best = split(budget)
    most = -(-len(best) // dp_size) * dp_size
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        found = split(middle)
        if len(found) <= most:
            best, high = found, middle
        else:
            low = middle + 1
    return best
