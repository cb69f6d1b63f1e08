"""Garbage collection while agents run."""

import gc

import pytest

from ajet.core.rollout.gc_thresholds import THRESHOLDS, infrequent_gc


def test_thresholds_are_raised_and_put_back_even_after_an_error():
    before = gc.get_threshold()
    with pytest.raises(KeyError), infrequent_gc():
        assert gc.get_threshold() == THRESHOLDS
        with infrequent_gc():
            pass
        assert gc.get_threshold() == THRESHOLDS
        raise KeyError
    assert gc.get_threshold() == before
