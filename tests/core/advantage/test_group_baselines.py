"""Estimators that compare an episode with its group: rloo, opo, reinforce_plus_plus_baseline."""

import numpy as np
import pytest

from ajet.core.advantage import ESTIMATORS, AdvantageOptions
from tests.core.advantage.advantage_fixtures import credited, per_turn

COMPARING = ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline", "gigpo"]


def advantages_of(name, *group, **options):
    return per_turn(ESTIMATORS[name].compute([group], AdvantageOptions(**options)))


def test_rloo_compares_with_the_others_mean():
    group = [credited(name, [reward]) for name, reward in zip("abcd", (1, 0, 0, 1), strict=True)]
    found = advantages_of("rloo", *group)
    assert found["a"] == pytest.approx([2 / 3])  # the others' mean is 1/3
    assert found["b"] == pytest.approx([-2 / 3])


def test_opo_weights_rewards_with_trained_tokens():
    # (2*1 + 4*0 + 4*0) / 10 = 0.2
    group = [credited("a", [1], [2]), credited("b", [0, 0], [1, 3]), credited("c", [0], [4])]
    found = advantages_of("opo", *group)
    assert found["a"] == pytest.approx([0.8])
    assert found["b"] == pytest.approx([-0.2, -0.2])


def test_an_opo_group_without_trained_tokens_is_no_nan():
    group = [credited("a", [1], [0]), credited("b", [0], [0])]
    found = ESTIMATORS["opo"].compute([group], AdvantageOptions())
    assert [[len(turn) for turn in turns] for turns in found.values()] == [[0], [0]]


def test_reinforce_plus_plus_baseline_is_centred_before_whitening():
    found = advantages_of(
        "reinforce_plus_plus_baseline", credited("a", [3]), credited("b", [0]), credited("c", [0])
    )
    assert found == {"a": [2], "b": [-1], "c": [-1]}


@pytest.mark.parametrize("name", COMPARING)
def test_equal_rewards_give_exact_zeros(name):
    group = tuple(credited(each, [0.1]) for each in "abcdefg")
    found = ESTIMATORS[name].compute([group], AdvantageOptions())
    assert all((turn == 0).all() for turns in found.values() for turn in turns)


@pytest.mark.parametrize("name", [*COMPARING, "step_reinforce"])
def test_a_lone_episode_gets_zeros_not_nan(name):
    assert advantages_of(name, credited("a", [0.3, 0.7])) == {"a": [0, 0]}


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline", "gigpo"])
def test_an_episode_counts_once_whatever_its_turns(name):
    once = advantages_of(name, credited("a", [1]), credited("b", [0]), credited("c", [0]))
    often = advantages_of(name, credited("a", [0, 0, 0, 1]), credited("b", [0]), credited("c", [0]))
    assert often["b"] == once["b"]
    assert often["a"] == once["a"] * 4


@pytest.mark.parametrize("name", COMPARING)
def test_penalties_are_taken_off_the_score(name):
    penalty = (np.array([0.25, 0.25], np.float32),)
    group = [credited("a", [1], penalties=penalty), credited("b", [0])]
    found = advantages_of(name, *group, normalize_std=False)
    clean = advantages_of(name, credited("a", [0.5]), credited("b", [0]), normalize_std=False)
    assert found == clean


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_every_turn_has_an_array_as_long_as_its_tokens(name):
    values = (np.zeros(3, np.float32), np.zeros(0, np.float32), np.zeros(1, np.float32))
    group = [credited(each, [1, 0, 2], [3, 0, 1], values=values, baseline=0.0) for each in "ab"]
    found = ESTIMATORS[name].compute([group], AdvantageOptions())
    assert [[len(turn) for turn in found[each]] for each in "ab"] == [[3, 0, 1]] * 2
    assert {turn.dtype for turns in found.values() for turn in turns} == {np.dtype(np.float32)}
