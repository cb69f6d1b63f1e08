"""Splits a step's samples into mini-batches of whole groups, for one optimizer step each.

groups a a a b b c    in two parts    a a a b b | c
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ajet.core.losses.mini_batch_tokens import Floats, TokenNumbers
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts.layout import Row, concat_to_device


def split_by_group(samples: Sequence[TrainingSample], num: int) -> list[list[int]]:
    """Splits samples into at most `num` parts of whole groups, and returns their indices. Groups
    stay in order of appearance; the parts' sizes differ by at most one group."""
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
