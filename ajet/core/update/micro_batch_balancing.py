"""Micro-batches for several ranks: the same number to each, of like size.

    rows ─ micro-batches of at most the budget ─ as even as can be ─ dealt out, largest first

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

NOBODY = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class BalancedMicroBatches:
    """All micro-batches of a mini-batch, and those that this rank computes."""

    micro_batches: list[list[Row]]
    own: list[list[Row]]


def balance_micro_batches(
    rows: Sequence[Row], layout: Layout, budget: int, ranks: Ranks
) -> BalancedMicroBatches:
    """`rows` may be empty: there is nothing to compute then, on any rank."""
    if not rows:
        return BalancedMicroBatches([], [])
    if ranks.size == 1:
        micro_batches = layout.split(rows, budget)
        return BalancedMicroBatches(micro_batches, micro_batches)
    micro_batches = _evenly(lambda tokens: layout.split(rows, tokens), budget, ranks.num_shares)
    sizes = [layout.num_computed(micro_batch) for micro_batch in micro_batches]
    places = assign(sizes, ranks.num_shares)
    idle = [_idle(rows[0])]
    own = [micro_batches[place] for place in places[ranks.share]]
    own += [idle] * (max(map(len, places)) - len(own))
    return BalancedMicroBatches(micro_batches, [layout.own(micro_batch) for micro_batch in own])


def assign(sizes: Sequence[int], num_shares: int) -> list[list[int]]:
    """Places of `sizes` by share: the largest first, each to the least loaded share that has room.
    No share has more than the mean number, rounded up."""
    room = -(-len(sizes) // num_shares)
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    loads = [0] * num_shares
    for place in sorted(range(len(sizes)), key=lambda p: (-sizes[p], p)):
        least = min(
            (i for i in range(num_shares) if len(shares[i]) < room), key=lambda i: (loads[i], i)
        )
        shares[least].append(place)
        loads[least] += sizes[place]
    return shares


def _evenly(split: Split, budget: int, num_shares: int) -> list[list[Row]]:
    """The smallest budget at which no rank has a pass more: it fills the passes that there are."""
    best = split(budget)
    most = -(-len(best) // num_shares) * num_shares
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        found = split(middle)
        if len(found) <= most:
            best, high = found, middle
        else:
            low = middle + 1
    return best


def _idle(row: Row) -> Row:
    return replace(row, weight=0.0, input_ids=row.input_ids[:1], read=NOBODY, targets=NOBODY)
