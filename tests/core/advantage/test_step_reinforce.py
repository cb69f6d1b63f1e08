"""step_reinforce by hand, and its expected gradient on an MDP small enough to enumerate."""

from itertools import product

import numpy as np
import pytest

from ajet.core.advantage import AdvantageOptions
from ajet.core.advantage.step_reinforce import step_reinforce
from tests.core.advantage.advantage_fixtures import credited, per_turn, random_groups


def test_a_step_is_compared_with_the_others_return_to_go_there():
    one, two, three = credited("1", [0, 0, 1]), credited("2", [0, 1]), credited("3", [0])
    assert per_turn(step_reinforce([(one, two, three)], AdvantageOptions())) == {
        "1": [0.5, 0.5, 1.0],
        "2": [0.5, 0.5],
        "3": [-1.0],
    }


def test_the_discount_is_by_turn():
    one, two = credited("1", [1, 2]), credited("2", [0])
    options = AdvantageOptions(step_reward_gamma=0.5)
    assert per_turn(step_reinforce([(one, two)], options)) == {"1": [2.0, 2.0], "2": [-2.0]}


def test_without_a_baseline_the_advantage_is_the_discounted_return_of_the_step():
    one, two = credited("1", [1, 2, 4]), credited("2", [0])
    options = AdvantageOptions(step_reward_gamma=0.5, step_baseline="none")
    assert per_turn(step_reinforce([(one,), (two,)], options)) == {"1": [3, 4, 4], "2": [0]}


@pytest.mark.parametrize("seed", range(5))
def test_step_reinforce_is_the_leave_one_out_formula(seed):
    groups = random_groups(seed)
    found = per_turn(step_reinforce(groups, AdvantageOptions(step_reward_gamma=0.9)))
    for group in groups:
        returns = {
            (i, t): sum(0.9**k * r for k, r in enumerate(e.turn_rewards_T[t:]))
            for i, e in enumerate(group)
            for t in range(len(e.lengths_T))
        }
        for (i, t), own in returns.items():
            others = [returns.get((j, t), 0.0) for j in range(len(group)) if j != i]
            expected = own - np.mean(others)
            assert found[group[i].episode_id][t] == pytest.approx(expected, abs=1e-6)


# An MDP of up to three turns. Going on ("go") is a bet: turn 1 pays 1 for stopping, going on to
# turn 2 pays 0 there and 3 for stopping, turn 3 pays 2 for "go" and 0 for "stop". What a turn pays
# depends on the action, how long an episode lasts too.
PAYS = {"stop": [1.0, 3.0, 0.0], "go": [0.0, -1.0, 2.0]}
LOGITS = np.array([0.3, -0.4, 0.2])  # of "go", one a turn: the policy's parameters


def trajectories():
    """All four: ``(actions, probability, gradient of the log-probability of each turn)``."""
    go = 1 / (1 + np.exp(-LOGITS))
    found = []
    for actions in (["stop"], ["go", "stop"], ["go", "go", "stop"], ["go", "go", "go"]):
        scores, probability = [], 1.0
        for turn, action in enumerate(actions):
            probability *= go[turn] if action == "go" else 1 - go[turn]
            gradient = np.zeros(3)
            gradient[turn] = (action == "go") - go[turn]  # of log sigmoid
            scores.append(gradient)
        found.append((actions, probability, scores))
    return found


def true_gradient():
    """Of the expected reward: the sum over trajectories of p * grad log p * R."""
    return sum(
        p * sum(scores) * sum(PAYS[a][t] for t, a in enumerate(actions))
        for actions, p, scores in trajectories()
    )


def expected_gradient(estimate, members=3):
    """Exactly: the sum over all groups that can happen, each with its probability."""
    total = np.zeros(3)
    for group in product(trajectories(), repeat=members):
        probability = np.prod([p for _, p, _ in group])
        rewards = [[PAYS[a][t] for t, a in enumerate(actions)] for actions, _, _ in group]
        for advantages, (_, _, scores) in zip(estimate(rewards), group, strict=True):
            pairs = zip(advantages, scores, strict=True)
            total += probability * sum(a * score for a, score in pairs) / members
    return total


def ours(rewards):
    group = tuple(credited(str(i), turns) for i, turns in enumerate(rewards))
    found = per_turn(step_reinforce([group], AdvantageOptions()))
    return [found[str(i)] for i in range(len(rewards))]


def survivors_only(rewards, with_std=False):
    """Each turn's returns less their mean over those that got as far, oneself included."""
    returns = [np.cumsum(turns[::-1])[::-1] for turns in rewards]

    def relative(own, turn):
        there = [r[turn] for r in returns if len(r) > turn]
        std = np.std(there, ddof=1) + 1e-6 if with_std and len(there) > 1 else 1.0
        return (own - np.mean(there)) / std

    return [[relative(own, turn) for turn, own in enumerate(r)] for r in returns]


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_the_expected_gradient_is_the_true_one():
    np.testing.assert_allclose(expected_gradient(ours), true_gradient(), atol=1e-6)


def test_normalisation_over_the_survivors_is_biased():
    truth = true_gradient()
    for with_std in (False, True):
        found = expected_gradient(lambda rewards, std=with_std: survivors_only(rewards, std))
        assert not np.allclose(found, truth, atol=0.01)
        assert cosine(found, truth) < 0.99  # not even in its direction
    share = expected_gradient(survivors_only) / truth
    assert share[2] < share[1] < share[0]  # late turns, with few survivors, shrink most
