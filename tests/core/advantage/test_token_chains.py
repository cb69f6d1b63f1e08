"""Estimators over an agent's tokens: reinforce, remax, gae."""

import numpy as np
import pytest

from ajet.core.advantage import AdvantageOptions
from ajet.core.advantage.agent_steps import agent_steps
from ajet.core.advantage.gae import gae, returns
from ajet.core.advantage.reinforce import reinforce
from ajet.core.advantage.remax import remax
from tests.core.advantage.advantage_fixtures import credited, per_token


def array(*numbers):
    return np.array(numbers, np.float32)


def close(numbers):
    return [pytest.approx(turn, abs=1e-6) for turn in numbers]


def test_returns_to_go_are_discounted_by_token_and_pass_over_turns():
    found = per_token(reinforce([(credited("a", [0.2, 1]),)], AdvantageOptions(gamma=0.5)))
    # 1 at the end; .5; then .2 + .25 = .45; .225
    assert found["a"] == close([[0.225, 0.45], [0.5, 1.0]])


def test_a_turn_that_is_not_trained_takes_no_time_and_its_reward_goes_to_the_one_before():
    one = credited("a", [0, 4, 1], [1, 0, 1])
    found = per_token(reinforce([(one,)], AdvantageOptions(gamma=0.5)))
    assert found["a"] == close([[4.5], [], [1.0]])


def test_the_steps_of_two_agents():
    one = credited("a", [0.1, 0, 0.2, 0.7], [4, 3, 0, 5], agents=["p", "q", "p", "p"])
    steps = {each.agent: each for each in agent_steps(one)}
    assert steps["p"].turns_S.tolist() == [0, 3]
    assert steps["p"].rewards_S.tolist() == pytest.approx([0.3, 0.7])
    assert steps["q"].turns_S.tolist() == [1]
    assert steps["q"].rewards_S.tolist() == pytest.approx([0.9])


def test_an_agent_is_discounted_over_its_own_tokens_alone():
    one = credited("a", [0, 0, 1], [1, 5, 1], agents=["p", "q", "p"])
    found = per_token(reinforce([(one,)], AdvantageOptions(gamma=0.5)))
    assert found["a"][0] == [0.5]  # one token before the last of its own, not six
    assert found["a"][2] == [1.0]
    assert found["a"][1] == close([[0.0625, 0.125, 0.25, 0.5, 1.0]])[0]  # what came of its turn


def test_penalties_stand_on_their_tokens():
    penalties = (array(0.5, 0.25),)
    one = credited("a", [1], penalties=penalties)
    found = per_token(reinforce([(one,)], AdvantageOptions()))
    assert found["a"] == [[0.25, 0.75]]


def test_remax_subtracts_the_greedy_reward():
    one = credited("a", [0.2, 1], baseline=0.7)
    assert per_token(remax([(one,)], AdvantageOptions()))["a"] == close([[0.5, 0.5], [0.3, 0.3]])


def test_gae_by_hand():
    # values 1 2 | 3, reward 4 at the end, gamma .5, lam .5; backwards:
    # 4 - 3 = 1;  .5*3 - 2 = -.5, + .25*1 = -.25;  .5*2 - 1 = 0, + .25*-.25 = -.0625
    one = credited("a", [0, 4], [2, 1], values=(array(1, 2), array(3)))
    raw = gae([(one,)], AdvantageOptions(gamma=0.5, lam=0.5))
    assert per_token(raw)["a"] == close([[-0.0625, -0.25], [1.0]])
    assert per_token(returns([(one,)], raw))["a"] == close([[0.9375, 1.75], [4.0]])


def test_gae_of_two_agents_are_two_chains():
    # p: values 1, 2, reward 4 -> 4 - 2 = 2, then 2 - 1 + 2 = 3.  q: value 5, reward 4 -> -1.
    values = (array(1), array(5), array(2))
    one = credited("a", [0, 0, 4], [1, 1, 1], agents=["p", "q", "p"], values=values)
    assert per_token(gae([(one,)], AdvantageOptions()))["a"] == [[3.0], [-1.0], [2.0]]


def test_gae_without_values_names_the_episode():
    with pytest.raises(AssertionError, match="episode a: gae needs"):
        gae([(credited("a", [1]),)], AdvantageOptions())
