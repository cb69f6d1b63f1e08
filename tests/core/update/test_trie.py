import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from update_fixtures import sample

from ajet.core.model.attention.trie import TrieSegment, parents_of, trie_of_rows
from ajet.core.update.layouts.layout import Row
from ajet.core.update.layouts.tree import _row_within


def arrays(*rows):
    return [np.array(row, np.int64) for row in rows]


def test_each_distinct_prefix_is_one_token_and_depth_is_its_position():
    forest = trie_of_rows(arrays([7, 8, 1, 2], [7, 8, 3, 4, 5], [7, 8, 1, 6]))
    # s q a   b   f      c d e         depth-first, rows in token order
    assert forest.token_ids_N.tolist() == [7, 8, 1, 2, 6, 3, 4, 5]
    assert forest.positions_N.tolist() == [0, 1, 2, 3, 3, 2, 3, 4]
    assert [n.tolist() for n in forest.row_nodes] == [[0, 1, 2, 3], [0, 1, 5, 6, 7], [0, 1, 2, 4]]
    assert forest.segments == (
        TrieSegment(0, 2, 8),
        TrieSegment(2, 3, 5),
        TrieSegment(3, 4, 4),
        TrieSegment(4, 5, 5),
        TrieSegment(5, 8, 8),
    )


def test_of_a_row_a_rank_reads_its_own_part_of_the_flat_tokens_from_the_first_one_on():
    row = Row.of(sample([7, 8, 1, 2, 3], "00111"))  # reads at 1, 2, 3 what follows there
    own = _row_within(row, np.array([4, 5, 6]), slice(5, 7))
    assert (own.positions.tolist(), own.targets.tolist()) == ([2, 3], [2, 3])
    others = _row_within(row, np.array([4, 5, 6]), slice(0, 5))
    assert (others.positions.tolist(), others.targets.tolist()) == ([1], [1])


def ancestors(forest):
    """For each flat token the set of tokens it may see, by the segments' own definition."""
    seen = [set() for _ in range(len(forest))]
    for s in forest.segments:
        for token in range(s.start, s.end):
            seen[token] |= set(range(s.start, min(s.stop, token + 1)))
    return seen


rows_strategy = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=9
)


@given(rows_strategy)
def test_the_segments_see_exactly_the_ancestors_of_any_rows(rows):
    forest = trie_of_rows(arrays(*rows))
    seen = ancestors(forest)
    assert len(forest) == len({tuple(r[: i + 1]) for r in rows for i in range(len(r))})
    for row, nodes in zip(rows, forest.row_nodes, strict=True):
        assert forest.token_ids_N[nodes].tolist() == row
        assert forest.positions_N[nodes].tolist() == list(range(len(row)))
        for depth, node in enumerate(nodes):
            assert seen[node] == set(nodes[: depth + 1].tolist())


def test_a_segments_parent_is_the_last_one_before_it_that_has_not_ended():
    #   0 ab ── 1 c ── 2 d       5 xy
    #       │      └─ 3 efg
    #       └─ 4 hi
    rows = [np.array([ord(c) for c in text]) for text in ("abcd", "abcefg", "abhi", "xy")]
    assert parents_of(trie_of_rows(rows).segments) == [-1, 0, 1, 1, 0, -1]
