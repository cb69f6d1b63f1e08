import numpy as np
import pytest

from ajet.core.advantage import AdvantageOptions
from ajet.core.advantage.gigpo import anchor_metrics, gigpo
from tests.core.advantage.advantage_fixtures import credited, per_turn, random_groups

STEPS_ALONE = AdvantageOptions(normalize_std=False, episode_reward_weight=0.0)


def test_both_levels_add_up():
    # Episode level: rewards 1 and 0, mean .5. State a: returns 1 and 0, mean .5; b and c are alone.
    one = credited("one", [0, 1], states=["a", "b"])
    two = credited("two", [0, 0], states=["a", "c"])
    found = per_turn(gigpo([(one, two)], AdvantageOptions(normalize_std=False)))
    assert found == {"one": [1.0, 0.5], "two": [-1.0, -0.5]}


def test_both_levels_are_divided_by_their_deviation():
    # Both are 1 and 0: (1 - .5) / (.7071068 + 1e-6) = .7071058
    one, two = credited("one", [1], states=["a"]), credited("two", [0], states=["a"])
    found = per_turn(gigpo([(one, two)], AdvantageOptions()))
    assert found["one"] == pytest.approx([2 * 0.7071058], abs=1e-6)


def test_weights_are_those_of_the_two_levels():
    one, two = credited("one", [0, 1], states="ab"), credited("two", [0, 0], states="ac")
    options = AdvantageOptions(
        normalize_std=False, episode_reward_weight=2.0, step_reward_weight=0.5
    )
    assert per_turn(gigpo([(one, two)], options))["one"] == [2 * 0.5 + 0.5 * 0.5, 2 * 0.5]


def test_steps_without_a_state_are_not_compared_with_each_other():
    one, two = credited("one", [3]), credited("two", [0])
    assert per_turn(gigpo([(one, two)], STEPS_ALONE)) == {"one": [0], "two": [0]}


def test_a_summary_has_the_episodes_advantage_alone_and_a_state_after_it_is_compared_as_ever():
    # Episode level: rewards 1 and 0: +-.5. State a: 1 and 0; b, after the summary of one: 1 and 0.
    one = credited("one", [0, 0, 1], states=["a", None, "b"])
    two = credited("two", [0, 0], states=["a", "b"])
    found = per_turn(gigpo([(one, two)], AdvantageOptions(normalize_std=False)))
    assert found == {"one": [1.0, 0.5, 1.0], "two": [-1.0, -1.0]}


def test_a_second_visit_counts():
    # Returns from a: 2, 1 (first episode) and 0: mean 1.
    one, two = credited("one", [1, 1], states="aa"), credited("two", [0], states="a")
    assert per_turn(gigpo([(one, two)], STEPS_ALONE)) == {"one": [1, 0], "two": [-1]}


def test_step_returns_are_discounted_by_turn():
    # Returns from a: 0 + .5 * 0 + .25 * 4 = 1, and 0.
    one, two = credited("one", [0, 0, 4], states="abc"), credited("two", [0], states="a")
    options = AdvantageOptions(
        normalize_std=False, episode_reward_weight=0.0, step_reward_gamma=0.5
    )
    assert per_turn(gigpo([(one, two)], options)) == {"one": [0.5, 0, 0], "two": [-0.5]}


def test_equal_states_of_two_groups_or_two_agents_are_not_compared():
    groups = [
        (credited("one", [1], states="a"), credited("two", [0], states="a", agents=["q"])),
        (credited("three", [5], states="a"),),
    ]
    found = per_turn(gigpo(groups, STEPS_ALONE))
    assert found == {"one": [0], "two": [0], "three": [0]}


def test_anchor_groups_are_reported():
    # State a has three steps, b one, and one has no key: 5 steps in 3 sets, two of them alone.
    one = credited("one", [0, 1, 0], states=["a", "b", "a"])
    two = credited("two", [0, 0], states=["a", None])
    assert anchor_metrics([(one, two)]) == {
        "gigpo/anchor_group_size": pytest.approx(5 / 3),
        "gigpo/singleton_steps": pytest.approx(2 / 5),
    }


def plain_gigpo(group, gamma, omega, with_std):
    """From the paper's formulas: loops, one group, one agent."""

    def norm(values):
        return np.std(values, ddof=1) + 1e-6 if with_std else 1.0

    totals = [sum(e.turn_rewards_T) for e in group]
    episode_level = [(total - np.mean(totals)) / norm(totals) for total in totals]
    steps = [
        (i, t, e.state_keys_T[t], sum(gamma**k * r for k, r in enumerate(e.turn_rewards_T[t:])))
        for i, e in enumerate(group)
        for t in range(len(e.lengths_T))
    ]
    found = {}
    for i, t, key, value in steps:
        anchored = [other for _, _, its_key, other in steps if its_key == key]
        step_level = (value - np.mean(anchored)) / norm(anchored) if len(anchored) > 1 else 0.0
        found[group[i].episode_id, t] = episode_level[i] + omega * step_level
    return found


@pytest.mark.parametrize("with_std", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_gigpo_is_the_papers_formula(seed, with_std):
    groups = random_groups(seed, states=3)
    options = AdvantageOptions(
        normalize_std=with_std, step_reward_gamma=0.9, step_reward_weight=0.7
    )
    found = per_turn(gigpo(groups, options))
    for group in groups:
        for (name, t), expected in plain_gigpo(group, 0.9, 0.7, with_std).items():
            assert found[name][t] == pytest.approx(expected, rel=1e-6, abs=1e-6)
