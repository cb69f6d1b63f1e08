"""The trie of cached tokens: sharing, splitting, room."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ajet.engines.prefix_cache import PrefixCache, path, path_slots


def _ids(*tokens):
    return np.array(tokens, np.int64)


def _num_used(cache):
    return cache.num_slots - cache.num_free


def _insert(cache, *tokens):
    """Insert and mark as computed, as the engine does."""
    tail = cache.insert(_ids(*tokens))
    for node in path(tail) if tail else []:
        node.computed = True
    return tail


def test_sequences_share_the_slots_of_their_common_prefix():
    cache = PrefixCache(20)
    a = _insert(cache, 1, 2, 3, 4)
    b = _insert(cache, 1, 2, 7)
    assert path_slots(a).tolist() == [1, 2, 3, 4]
    assert path_slots(b).tolist() == [1, 2, 5]
    assert _num_used(cache) == 5
    assert [node.tokens.tolist() for node in path(a)] == [[1, 2], [3, 4]]


def test_only_the_missing_end_has_to_be_computed():
    cache = PrefixCache(20)
    _insert(cache, 1, 2, 3, 4)
    nodes = path(cache.insert(_ids(1, 2, 7, 8)))
    assert [(node.tokens.tolist(), node.computed) for node in nodes] == [
        ([1, 2], True),
        ([7, 8], False),
    ]


def test_a_prefix_of_what_is_cached_needs_no_slot():
    cache = PrefixCache(4)
    _insert(cache, 1, 2, 3, 4)
    assert path_slots(_insert(cache, 1, 2)).tolist() == [1, 2]
    assert _num_used(cache) == 4
    assert path_slots(_insert(cache)).tolist() == []


def test_the_least_recently_used_leaf_makes_room():
    cache = PrefixCache(6)
    for tokens in [(1, 2), (3, 4), (5, 6)]:
        cache.tick()
        _insert(cache, *tokens)
    cache.tick()
    _insert(cache, 1, 2)  # used again: (3, 4) is the oldest now
    _insert(cache, 7, 8)
    assert cache.insert(_ids(1, 2)).computed
    assert cache.insert(_ids(5, 6)).computed
    assert _num_used(cache) == 6


def test_blocks_of_the_current_batch_are_not_evicted():
    cache = PrefixCache(4)
    cache.tick()
    _insert(cache, 1, 2, 3)
    assert cache.insert(_ids(4, 5)) is None
    cache.tick()
    assert cache.insert(_ids(4, 5)) is not None


def test_an_episode_that_is_over_frees_its_turns_but_not_what_others_share():
    cache = PrefixCache(20)
    _insert(cache, 1, 2)
    a = _insert(cache, 1, 2, 3)
    cache.mark_tail("a", a)
    cache.mark_tail("a", _insert(cache, 1, 2, 3, 4))
    shared = _insert(cache, 1, 2, 9)
    cache.mark_tail("a", shared)
    cache.mark_tail("b", shared)
    cache.release(["a", "never entered"])
    assert _num_used(cache) == 3  # 1, 2 and 9 of episode b
    cache.release(["b"])
    assert _num_used(cache) == 2


def test_clear_forgets_everything():
    cache = PrefixCache(4)
    _insert(cache, 1, 2, 3)
    cache.clear()
    assert _num_used(cache) == 0
    assert path_slots(cache.insert(_ids(5, 6, 7, 8))).tolist() == [1, 2, 3, 4]


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=30), st.integers(8, 40))
@settings(max_examples=200)
def test_every_slot_holds_one_token_of_one_prefix(sequences, num_slots):
    """A slot belongs to one prefix: sequences agree on a slot only if they agree up to it."""
    cache = PrefixCache(num_slots)
    for sequence in sequences:
        cache.tick()
        assert _insert(cache, *sequence) is not None
    owner: dict[int, tuple[int, ...]] = {}
    used = _num_used(cache)
    for sequence in sequences:
        tail = cache.insert(_ids(*sequence))
        if tail is None or not tail.computed:
            break
        slots = path_slots(tail).tolist()
        assert len(slots) == len(sequence) == len(set(slots))
        for at, slot in enumerate(slots):
            assert 1 <= slot <= num_slots
            assert owner.setdefault(slot, tuple(sequence[: at + 1])) == tuple(sequence[: at + 1])
    assert used <= num_slots
