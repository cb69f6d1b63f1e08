"""Splits a step's samples into mini-batches of whole groups, for one optimizer step each, and a
mini-batch's numbers into those of its samples.

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
    """Splits samples into at most `num` parts of whole groups, and returns their indices.

    Groups are in order of appearance; the parts' sizes differ by at most one group.
    """
    groups: dict[str, list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault(sample.group_id, []).append(index)
    members = list(groups.values())
    parts = np.array_split(np.arange(len(members)), num)
    return [[index for group in part for index in members[group]] for part in parts if len(part)]


@dataclass(frozen=True, slots=True)
class NumbersOfSamples:
    """Holds a loss's numbers as arrays over all tokens of each sample, 0 where none is sampled."""

    by_name: Mapping[str, Sequence[Floats]]

    @classmethod
    def of(cls, samples: Sequence[TrainingSample], numbers: TokenNumbers) -> NumbersOfSamples:
        cuts = np.cumsum([sample.num_sampled for sample in samples])[:-1]

        def spread(values_M: Floats) -> list[Floats]:
            arrays = [np.zeros(len(sample)) for sample in samples]
            parts = np.split(values_M, cuts)
            for sample, array_T, part in zip(samples, arrays, parts, strict=True):
                array_T[sample.sampled_mask] = part
            return arrays

        return cls({name: spread(values_M) for name, values_M in numbers.items()})

    def of_rows(self, rows: Sequence[Row], like_M: Tensor) -> dict[str, Tensor]:
        """Returns the numbers of the trained tokens of `rows`, with the type of `like_M`."""
        return {
            name: concat_to_device(
                (row.trained(arrays[row.sample_index]) for row in rows), like_M.device
            ).to(like_M.dtype)
            for name, arrays in self.by_name.items()
        }
