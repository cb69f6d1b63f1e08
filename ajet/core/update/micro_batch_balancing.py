"""Micro-batches for several ranks: the same number to each, of like size.

    rows ─ micro-batches of at most the budget ─ as even as can be ─ balanced out, largest first

    sizes 7 5 4 4 2 1, two shares      7 4 1 | 5 4 2
    sizes 6 4 3, two shares            6 idle | 4 3

Every forward pass of a sharded model is made by all ranks together: a rank without one takes part
with an idle micro-batch, one token that nobody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ajet.core.update.layouts.layout import Layout, Row
from ajet.core.update.ranks import Ranks

Split = Callable[[int], list[list[Row]]]
"""A budget of computed tokens -> micro-batches."""

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
    indices = assign_to_ranks(sizes, ranks.dp_size)
    idle = [_idle_row(rows[0])]
    own = [micro_batches[index] for index in indices[ranks.dp_rank]]
    own += [idle] * (max(map(len, indices)) - len(own))
    return BalancedMicroBatches(
        micro_batches, [layout.local_rows(micro_batch) for micro_batch in own]
    )


def assign_to_ranks(sizes: Sequence[int], dp_size: int) -> list[list[int]]:
    """Returns the indices of `sizes` for each rank.

    The largest come first, each for the least loaded rank that may take more. No rank has more than
    the mean number, rounded up.
    """
    room = -(-len(sizes) // dp_size)
    shares: list[list[int]] = [[] for _ in range(dp_size)]
    loads = [0] * dp_size
    for index in sorted(range(len(sizes)), key=lambda p: (-sizes[p], p)):
        least = min(
            (i for i in range(dp_size) if len(shares[i]) < room), key=lambda i: (loads[i], i)
        )
        shares[least].append(index)
        loads[least] += sizes[index]
    return shares


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


def _idle_row(row: Row) -> Row:
    """Returns a row of one token that nothing reads, with weight 0."""
    return replace(
        row, weight=0.0, input_ids=row.input_ids[:1], positions=NO_POSITIONS, targets=NO_POSITIONS
    )
