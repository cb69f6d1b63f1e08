"""Agents with rewards of their own are compared apart, each with itself in other episodes."""

import numpy as np
import pytest

from ajet.core.advantage import AdvantageOptions, EstimatorSettings, estimate
from ajet.core.advantage.credit import EpisodeCredit
from ajet.core.errors import ConfigError


def episode(number, pro, con, lengths=(2, 0, 1, 3), **given):
    """Turns of pro, a user, con and pro; `reward` only says how the episode went."""
    agents_T = ("pro/default", "user/default", "con/default", "pro/default")
    rewards = {"pro/default": pro, "con/default": con}
    return EpisodeCredit(
        episode_id=f"e{number}",
        group_id="g",
        reward=9.0,
        turn_rewards_T=np.array([0.0, 0.0, 0.0, 9.0]),
        state_keys_T=(None,) * 4,
        lengths_T=np.array(lengths, np.int64),
        agents_T=agents_T,
        agent_rewards={a: r for a, r in rewards.items() if r is not None},
        **given,
    )


def values(result, number):
    return [array.tolist() for array in result.advantages[f"e{number}"]]


def test_each_agent_is_compared_with_itself_by_its_own_reward():
    options = EstimatorSettings(options=AdvantageOptions(normalize_std=False))
    result = estimate([(episode(0, 1.0, -3.0), episode(1, 0.0, 1.0))], options)
    assert values(result, 0) == [[0.5, 0.5], [], [-2.0], [0.5, 0.5, 0.5]]
    assert values(result, 1) == [[-0.5, -0.5], [], [2.0], [-0.5, -0.5, -0.5]]
    assert result.metrics["advantage/abs_mean/pro/default"] == 0.5
    assert result.metrics["advantage/abs_mean/con/default"] == 2.0


def test_a_view_has_the_kl_penalties_of_its_agents_tokens_alone():
    options = EstimatorSettings(options=AdvantageOptions(normalize_std=False))
    of_turns = ([0.25, 0.25], [], [4.0], [0.0, 0.0, 0.5])
    penalties = tuple(np.array(numbers, np.float32) for numbers in of_turns)
    free = tuple(np.zeros_like(array) for array in penalties)
    group = (episode(0, 1.0, -3.0, penalties=penalties), episode(1, 0.0, 1.0, penalties=free))
    result = estimate([group], options)
    # pro: 1 - 1 against 0; con: -3 - 4 against 1
    assert values(result, 0) == [[0.0, 0.0], [], [-4.0], [0.0, 0.0, 0.0]]
    assert values(result, 1) == [[0.0, 0.0], [], [4.0], [0.0, 0.0, 0.0]]


def test_an_episode_in_which_an_agent_is_silent_is_no_part_of_its_comparison():
    options = EstimatorSettings(options=AdvantageOptions(normalize_std=False))
    silent = episode(2, 5.0, None, lengths=(2, 0, 0, 3))
    group = (episode(0, 1.0, -1.0), episode(1, 0.0, 1.0), silent)
    result = estimate([group], options)
    assert values(result, 0)[2] == [-1.0]
    assert values(result, 2) == [[3.0, 3.0], [], [], [3.0, 3.0, 3.0]]


def test_step_rewards_of_a_view_add_up_to_the_agents_reward():
    options = EstimatorSettings(
        "step_reinforce", options=AdvantageOptions(step_baseline="none", step_reward_gamma=1.0)
    )
    result = estimate([(episode(0, 1.0, -3.0),)], options)
    assert values(result, 0) == [[1.0, 1.0], [], [-3.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize("name", ["remax", "gdpo"])
def test_estimators_of_whole_episodes_refuse_rewards_of_agents(name):
    with pytest.raises(ConfigError, match=f"adv_estimator={name}.*agent_rewards"):
        estimate([(episode(0, 1.0, -1.0),)], EstimatorSettings(name))
