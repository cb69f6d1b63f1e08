"""Garbage collection while agents run."""

import gc

import pytest

from ajet.core.rollout.gc_thresholds import THRESHOLDS, infrequent_gc, lasting_imports


def test_thresholds_are_raised_and_put_back_even_after_an_error():
    before = gc.get_threshold()
    with pytest.raises(KeyError), infrequent_gc():
        assert gc.get_threshold() == THRESHOLDS
        with infrequent_gc():
            pass
        assert gc.get_threshold() == THRESHOLDS
        raise KeyError
    assert gc.get_threshold() == before


def test_thresholds_that_a_user_raised_further_stay():
    before = gc.get_threshold()
    gc.set_threshold(90_000, 5, 5)
    try:
        with infrequent_gc():
            assert gc.get_threshold() == (90_000, 20, 100)
        assert gc.get_threshold() == (90_000, 5, 5)
    finally:
        gc.set_threshold(*before)


def test_a_collector_that_is_off_stays_off():
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with infrequent_gc():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)


def test_the_collector_does_not_visit_again_what_a_command_imported():
    gc.unfreeze()
    with lasting_imports():
        made = []
    with lasting_imports():
        a_model = []
    visited = {id(one) for one in gc.get_objects()}
    gc.unfreeze()
    assert id(made) not in visited and id(a_model) in visited
