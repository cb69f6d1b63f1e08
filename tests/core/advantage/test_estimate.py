"""The whole way from credits to what the update gets."""

import numpy as np
import pytest

from ajet.core.advantage import (
    ESTIMATORS,
    AdvantageOptions,
    EstimatorSettings,
    RewardShaping,
    estimate,
)
from ajet.core.advantage.estimation import whiten
from tests.core.advantage.advantage_fixtures import credited, per_token, per_turn, random_groups

GROUP = (credited("a", [1]), credited("b", [0]))


def test_whitened_advantages_have_mean_zero_and_deviation_one():
    found = estimate(random_groups(0), EstimatorSettings("reinforce", whiten=True)).advantages
    tokens = np.concatenate([turn for turns in found.values() for turn in turns])
    assert tokens.mean() == pytest.approx(0, abs=1e-6)
    assert tokens.std(ddof=1) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1])
def test_equal_advantages_are_whitened_to_zero(value):
    raw = {"a": (np.full(7, value, np.float32), np.zeros(0, np.float32))}
    assert per_token(whiten(raw)) == {"a": [[0.0] * 7, []]}
    assert whiten({}) == {} and whiten({"a": ()}) == {"a": ()}


def test_one_token_is_whitened_to_zero_not_nan():
    assert per_token(whiten({"a": (np.ones(1, np.float32),)})) == {"a": [[0.0]]}


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_null_whitens_where_the_estimator_is_defined_so(name):
    defined_so = {"gae", "gdpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}
    assert EstimatorSettings(name).whitens == (name in defined_so)
    assert EstimatorSettings(name, whiten=True).whitens
    assert not EstimatorSettings(name, whiten=False).whitens


def test_rewards_are_shaped_before_and_advantages_cut_after():
    settings = EstimatorSettings(
        "grpo",
        AdvantageOptions(normalize_std=False),
        RewardShaping(clip=0.8),
        clip=0.3,
    )
    found = estimate([GROUP], settings)
    assert per_turn(found.advantages) == {"a": [pytest.approx(0.3)], "b": [pytest.approx(-0.3)]}
    assert found.metrics["reward/clipped"] == 0.5
    assert found.metrics["advantage/clipped"] == 1.0


def test_the_critic_learns_raw_returns_whatever_is_whitened_or_cut():
    values = (np.zeros(2, np.float32),)
    group = tuple(credited(n, [r], values=values) for n, r in (("a", 5.0), ("b", 1.0)))
    found = estimate([group], EstimatorSettings("gae", clip=0.1))
    assert found.returns is not None
    assert per_turn(found.returns) == {"a": [5.0], "b": [1.0]}
    assert per_turn(found.advantages)["a"] == [pytest.approx(0.1)]
    assert estimate([GROUP], EstimatorSettings("grpo")).returns is None


def test_tokens_and_episodes_that_teach_nothing_are_counted():
    equal = tuple(credited(name, [1], [6]) for name in "cd")
    metrics = estimate([GROUP, equal], EstimatorSettings("rloo")).metrics
    assert metrics["advantage/zero_tokens"] == 12 / 16
    assert metrics["advantage/zero_episodes"] == 0.5
    assert metrics["advantage/abs_mean"] == 4 / 16
    assert metrics["advantage/mean"] == 0


def test_estimators_report_their_own():
    known = credited("a", [1], baseline=0.5, states="x")
    group = (known, credited("b", [0], states="x"))
    assert estimate([group], EstimatorSettings("remax")).metrics["remax/no_baseline"] == 0.5
    gigpo = estimate([group], EstimatorSettings("gigpo")).metrics
    assert gigpo["gigpo/anchor_group_size"] == 2.0
    assert gigpo["gigpo/singleton_steps"] == 0.0


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_an_empty_batch_is_an_empty_estimate(name):
    found = estimate([()], EstimatorSettings(name, clip=1.0))
    assert found.advantages == {}
    assert all(np.isfinite(value) for value in found.metrics.values())


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_nothing_is_nan_whatever_is_combined(name):
    groups = random_groups(3, penalties=True, values=True, states=2)
    shaping = RewardShaping(5, 1.0, 100, "batch", True, 1.0)
    found = estimate(groups, EstimatorSettings(name, shaping=shaping, whiten=True, clip=2.0))
    assert all(np.isfinite(turn).all() for turns in found.advantages.values() for turn in turns)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_an_estimator_reads_the_options_of_its_row_alone(name):
    class Watched(AdvantageOptions):
        def __getattribute__(self, key):
            read.add(key)
            return super().__getattribute__(key)

    read = set()
    groups = random_groups(3, values=True, states=2)
    row, options = ESTIMATORS[name], Watched(reward_weights={"r": 1.0})
    read.clear()
    row.compute(groups, options)
    assert read == set(row.reads)


@pytest.mark.parametrize(
    ("rewards", "share"), [([1.0], 1.0), ([0.5], 0.0), ([1.0, 0.0, 3.0], 2 / 3)]
)
def test_the_share_of_cut_advantages_is_that_of_tokens(rewards, share):
    groups = [tuple(credited(str(n), [r], [1]) for n, r in enumerate(rewards))]  # a token each
    found = estimate(groups, EstimatorSettings("reinforce", clip=0.75))
    assert found.metrics["advantage/clipped"] == pytest.approx(share)
