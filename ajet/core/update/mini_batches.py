"""Splits a step's samples into mini-batches of whole groups, for one optimizer step each.

groups a a a b b c    in two parts    a a a b b | c
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.trajectory.sample import TrainingSample


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
