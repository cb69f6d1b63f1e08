"""A step's samples, cut into parts of whole groups: one optimizer step each.

groups a a a b b c    in two parts    a a a b b | c
"""

from collections.abc import Sequence

import numpy as np

from ajet.core.trajectory.sample import TrainingSample


def split_by_group(samples: Sequence[TrainingSample], num: int) -> list[list[int]]:
    """Places in `samples` of at most `num` parts of whole groups, in order of appearance, sizes
    differing by one group."""
    groups: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        groups.setdefault(sample.group_id, []).append(place)
    members = list(groups.values())
    parts = np.array_split(np.arange(len(members)), num)
    return [[place for group in part for place in members[group]] for part in parts if len(part)]
