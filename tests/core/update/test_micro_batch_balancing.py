import random

import numpy as np
import pytest
from update_fixtures import forked_groups, tiny_model

from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.mini_batches import assign_to_ranks, balance_micro_batches


class DataRank:
    """Data-parallel rank `rank` of `size`, as far as micro_batch_balancing reads it."""

    def __init__(self, rank, size):
        self.rank, self.size, self.dp_rank, self.dp_size = rank, size, rank, size


def test_the_largest_go_first_and_each_share_has_as_many():
    assert assign_to_ranks([7, 5, 4, 4, 2, 1], 2) == [[0, 3, 5], [1, 2, 4]]
    assert assign_to_ranks([6, 4, 3], 2) == [[0], [1, 2]]
    assert assign_to_ranks([], 3) == [[], [], []]


def test_everything_is_dealt_once_and_evenly():
    dice = random.Random(0)
    for _ in range(300):
        dp_size = dice.randint(1, 8)
        sizes = [dice.randint(1, 100) for _ in range(dice.randint(0, 40))]
        shares = assign_to_ranks(sizes, dp_size)
        assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
        room = -(-len(sizes) // dp_size)
        assert max(map(len, shares)) == room
        loads = [sum(sizes[index] for index in share) for share in shares]
        assert max(loads) <= sum(sizes) / dp_size + max(sizes, default=0)


@pytest.mark.parametrize("layout_name", ["padded", "packed", "tree"])
@pytest.mark.parametrize("size", [2, 3, 4, 64])
def test_every_row_is_somebodys_once_and_all_take_part_equally_often(layout_name, size):
    rows = rows_of(forked_groups())
    layout = make_layout(tiny_model(), layout_name)
    parts = [balance_micro_batches(rows, layout, 60, DataRank(rank, size)) for rank in range(size)]
    real = [row for part in parts for batch in part.local for row in batch if len(row.positions)]
    assert sorted(row.sample_index for row in real) == sorted(row.sample_index for row in rows)
    assert len({len(part.local) for part in parts}) == 1
    for part in parts:
        assert [len(b) for b in part.micro_batches] == [len(b) for b in parts[0].micro_batches]
        for batch in part.local:
            assert layout.num_computed(batch) <= 60 or len(batch) == 1
    loads = [sum(layout.num_computed(batch) for batch in part.local) for part in parts]
    longest = max(map(len, rows))
    assert max(loads) <= np.mean(loads) + 2 * longest


def test_a_rank_without_a_row_takes_part_with_one_token_that_nobody_reads():
    rows = rows_of(forked_groups())[:1]
    layout = make_layout(tiny_model(), "tree")
    own = [balance_micro_batches(rows, layout, 60, DataRank(rank, 2)).local for rank in range(2)]
    assert [len(row.positions) for row in own[0][0]] == [len(rows[0].positions)]
    [[idle]] = own[1]
    assert (len(idle), len(idle.positions)) == (1, 0)


def test_one_rank_has_the_layouts_own_micro_batches():
    rows = rows_of(forked_groups())
    layout = make_layout(tiny_model(), "tree")
    balanced = balance_micro_batches(rows, layout, 60, DataRank(0, 1))
    assert balanced.local is balanced.micro_batches
    assert [len(b) for b in balanced.local] == [len(b) for b in layout.split(rows, 60)]


@pytest.mark.parametrize("layout_name", ["padded", "packed", "tree"])
def test_the_computed_tokens_are_those_of_the_forward_pass(layout_name):
    rows = rows_of(forked_groups())[:5]
    layout = make_layout(tiny_model(), layout_name)
    expected = (
        len(layout.forest(rows)) if layout_name != "padded" else 5 * max(len(r) for r in rows)
    )
    assert layout.num_computed(rows) == expected
