"""What two sequences begin with alike, counted by hand."""

import numpy as np
import pytest

from ajet.core.model.attention.trie import common_length, common_length_of_ids

CASES = [
    ([], [], 0),
    ([], [1], 0),
    ([1, 2], [1, 2], 2),
    ([1, 2], [1, 2, 3], 2),
    ([1, 2, 3], [1, 2], 2),
    ([1, 2, 3], [1, 4, 3], 1),
    ([5], [6], 0),
]


@pytest.mark.parametrize(("a", "b", "expected"), CASES)
def test_lists_tuples_and_arrays_begin_alike_for_as_long(a, b, expected):
    assert common_length(a, b) == common_length(tuple(a), tuple(b)) == expected
    assert common_length([{"content": each} for each in a], [{"content": each} for each in b]) == (
        expected
    )
    assert common_length_of_ids(np.array(a, np.int64), np.array(b, np.int64)) == expected
