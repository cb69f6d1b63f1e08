"""Divides a step's samples into mini-batches of whole groups, for one optimizer step each, and
these into micro-batches, balanced over data-parallel ranks: the same number for each, of similar
size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.losses.mini_batch_tokens import Floats, TokenNumbers
from ajet.core.ranks.ranks import Ranks
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import (
    Layout,
    Row,
    concat_to_device,
    rows_of,
    scatter_to_samples,
)


def split_by_group(samples: Sequence[TrainingSample], num: int) -> list[list[int]]:
    """Splits samples into at most `num` parts of whole groups, and returns their indices. Groups
    stay in order of appearance; the parts' sizes differ by at most one group: a a a b b c -> a a a
    b b | c."""
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group_id, []).append(index)
    members = list(groups.values())
    chunks = np.array_split(np.arange(len(members)), num)
    return [[index for group in part for index in members[group]] for part in chunks if len(part)]


@dataclass(frozen=True, slots=True)
class NumbersOfSamples:
    """A loss's numbers as arrays [T] over all tokens of each sample, 0 at tokens that were not
    sampled. (The loss has one array over all sampled tokens of the mini-batch, in sample order.)"""

    by_name: Mapping[str, Sequence[Floats]]

    @classmethod
    def of(cls, samples: Sequence[TrainingSample], numbers: TokenNumbers) -> NumbersOfSamples:
        cuts = np.cumsum([sample.num_sampled for sample in samples])[:-1]

        def spread(values_M: Floats) -> list[Floats]:
            arrays = [np.zeros(len(sample)) for sample in samples]
            by_sample = np.split(values_M, cuts)
            for sample, array_T, part in zip(samples, arrays, by_sample, strict=True):
                array_T[sample.sampled_mask] = part
            return arrays

        return cls({name: spread(values_M) for name, values_M in numbers.items()})

    def for_rows(self, rows: Sequence[Row], like_M: Tensor) -> dict[str, Tensor]:
        """Returns the numbers of the trained tokens [M] of `rows`, in the dtype of `like_M`."""
        return {
            name: concat_to_device(
                (row.trained(arrays[row.sample_index]) for row in rows), like_M.device
            ).to(like_M.dtype)
            for name, arrays in self.by_name.items()
        }


NO_POSITIONS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class BalancedMicroBatches:
    """All micro-batches of a mini-batch, and those that this rank computes (`local`)."""

    micro_batches: list[list[Row]]
    local: list[list[Row]]


def balance_micro_batches(
    rows: Sequence[Row], layout: Layout, budget: int, ranks: Ranks
) -> BalancedMicroBatches:
    """Splits `rows` into micro-batches within the budget, as even as possible, and assigns them to
    the ranks, largest first; all ranks compute the same assignment from the same rows.

        sizes 7 5 4 4 2 1, two ranks      7 4 1 | 5 4 2
        sizes 6 4 3, two ranks            6 idle | 4 3

    All ranks make every forward pass of a sharded model together: a rank without a micro-batch
    takes part with an idle one, a single token that nothing reads."""
    if not rows:
        return BalancedMicroBatches([], [])
    if ranks.size == 1:
        micro_batches = layout.split(rows, budget)
        return BalancedMicroBatches(micro_batches, micro_batches)
    micro_batches = _split_evenly(rows, layout, budget, ranks.dp_size)
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


def _split_evenly(
    rows: Sequence[Row], layout: Layout, budget: int, dp_size: int
) -> list[list[Row]]:
    """Splits with the smallest budget that needs no more passes per rank than `budget` does."""
    # `most` micro-batches are free: every rank makes that many passes anyway. Within that number, a
    # smaller budget makes them more even; it is found by bisection.
    best = layout.split(rows, budget)
    most = -(-len(best) // dp_size) * dp_size
    low, high = 1, budget
    while low < high:
        middle = (low + high) // 2
        micro_batches = layout.split(rows, middle)
        if len(micro_batches) <= most:
            best, high = micro_batches, middle
        else:
            low = middle + 1
    return best
