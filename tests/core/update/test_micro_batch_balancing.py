import random

import numpy as np
import pytest
from update_fixtures import forked_groups, tiny_model

from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.micro_batch_balancing import assign, balance_micro_batches


class Share:
    """Rank `share` of `size`, as far as micro_batch_balancing asks."""

    def __init__(self, share, size):
        self.rank, self.size, self.share, self.num_shares = share, size, share, size


def test_the_largest_go_first_and_each_share_has_as_many():
    assert assign([7, 5, 4, 4, 2, 1], 2) == [[0, 3, 5], [1, 2, 4]]
    assert assign([6, 4, 3], 2) == [[0], [1, 2]]
    assert assign([], 3) == [[], [], []]


def test_everything_is_dealt_once_and_evenly():
    dice = random.Random(0)
    for _ in range(300):
        num_shares = dice.randint(1, 8)
        sizes = [dice.randint(1, 100) for _ in range(dice.randint(0, 40))]
        shares = assign(sizes, num_shares)
        assert sorted(place for share in shares for place in share) == list(range(len(sizes)))
        room = -(-len(sizes) // num_shares)
        assert max(map(len, shares)) == room
        loads = [sum(sizes[place] for place in share) for share in shares]
        assert max(loads) <= sum(sizes) / num_shares + max(sizes, default=0)


@pytest.mark.parametrize("layout_name", ["padded", "packed", "tree"])
@pytest.mark.parametrize("size", [2, 3, 4, 64])
def test_every_row_is_somebodys_once_and_all_take_part_equally_often(layout_name, size):
    rows = rows_of(forked_groups())
    layout = make_layout(tiny_model(), layout_name)
    hands = [balance_micro_batches(rows, layout, 60, Share(share, size)) for share in range(size)]
    real = [row for hand in hands for batch in hand.own for row in batch if len(row.read)]
    assert sorted(row.place for row in real) == sorted(row.place for row in rows)
    assert len({len(hand.own) for hand in hands}) == 1
    for hand in hands:
        assert [len(b) for b in hand.micro_batches] == [len(b) for b in hands[0].micro_batches]
        for batch in hand.own:
            assert layout.num_computed(batch) <= 60 or len(batch) == 1
    loads = [sum(layout.num_computed(batch) for batch in hand.own) for hand in hands]
    longest = max(map(len, rows))
    assert max(loads) <= np.mean(loads) + 2 * longest


def test_a_rank_without_a_row_takes_part_with_one_token_that_nobody_reads():
    rows = rows_of(forked_groups())[:1]
    layout = make_layout(tiny_model(), "tree")
    own = [balance_micro_batches(rows, layout, 60, Share(share, 2)).own for share in range(2)]
    assert [len(row.read) for row in own[0][0]] == [len(rows[0].read)]
    [[idle]] = own[1]
    assert (len(idle), len(idle.read), idle.weight) == (1, 0, 0.0)


def test_one_rank_has_the_layouts_own_micro_batches():
    rows = rows_of(forked_groups())
    layout = make_layout(tiny_model(), "tree")
    dealt = balance_micro_batches(rows, layout, 60, Share(0, 1))
    assert dealt.own is dealt.micro_batches
    assert [len(b) for b in dealt.own] == [len(b) for b in layout.split(rows, 60)]


@pytest.mark.parametrize("layout_name", ["padded", "packed", "tree"])
def test_the_computed_tokens_are_those_of_the_forward_pass(layout_name):
    rows = rows_of(forked_groups())[:5]
    layout = make_layout(tiny_model(), layout_name)
    expected = (
        len(layout.forest(rows)) if layout_name != "padded" else 5 * max(len(r) for r in rows)
    )
    assert layout.num_computed(rows) == expected
