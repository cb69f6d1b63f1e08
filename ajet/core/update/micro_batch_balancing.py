"""Balances micro-batches over data-parallel ranks: the same number for each, of similar size.

    rows ─> micro-batches within the budget, as even as possible ─> assigned, largest first

    sizes 7 5 4 4 2 1, two ranks      7 4 1 | 5 4 2
    sizes 6 4 3, two ranks            6 idle | 4 3

All ranks make every forward pass of a sharded model together: a rank without a micro-batch takes
part with an idle one, a single token that nothing reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.ranks.ranks import Ranks
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Layout, Row, rows_of, scatter_to_samples

Split = Callable[[int], list[list[Row]]]
"""Splits into micro-batches for a budget of computed tokens."""

NO_POSITIONS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class BalancedMicroBatches:
    """All micro-batches of a mini-batch, and those that this rank computes (`local`)."""

    micro_batches: list[list[Row]]
    local: list[list[Row]]


def balance_micro_batches(
    rows: Sequence[Row], layout: Layout, budget: int, ranks: Ranks
) -> BalancedMicroBatches:
    """Splits `rows` into micro-batches and assigns them to the ranks; all ranks compute the same
    assignment from the same rows."""
    if not rows:
        return BalancedMicroBatches([], [])
    if ranks.size == 1:
        micro_batches = layout.split(rows, budget)
        return BalancedMicroBatches(micro_batches, micro_batches)
    micro_batches = _split_evenly(lambda tokens: layout.split(rows, tokens), budget, ranks.dp_size)
    sizes = [layout.num_computed(micro_batch) for micro_batch in micro_batches]
    by_rank = assign_to_ranks(sizes, ranks.dp_size)
    # An idle row has one input and no positions: a forward pass without a loss.
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
    """Runs `compute`, which returns a number for each trained token of a micro-batch, over all
    samples. Returns an array ``[T]`` for each sample, 0 at tokens that are not trained."""
    local = balance_micro_batches(rows_of(samples), layout, budget, ranks).local
    return scatter_to_samples(samples, ((rows, compute(rows)) for rows in local), ranks)


def assign_to_ranks(sizes: Sequence[int], dp_size: int) -> list[list[int]]:
    """Returns the indices of `sizes` for each rank: the largest first, each to the least loaded
    rank that has fewer than the mean number of micro-batches, rounded up."""
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
    # `most` micro-batches are free: every rank makes that many passes anyway. Within that number, a
    # smaller budget makes them more even; it is found by bisection.
    best = split(budget)
    most = -(-len(best) // dp_size) * dp_size
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        micro_batches = split(middle)
        if len(micro_batches) <= most:
            best, high = micro_batches, middle
        else:
            low = middle + 1
    return best
