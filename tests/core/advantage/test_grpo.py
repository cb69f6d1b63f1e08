import numpy as np
import pytest

from ajet.core.advantage import AdvantageOptions
from ajet.core.advantage.grpo import grpo
from ajet.core.inference.endpoint import Completion
from ajet.core.learning.credit import credit_of
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn


def turn(num_tokens, trainable=True):
    completion = Completion((1,), (2,) * num_tokens, (-1.0,) * num_tokens, "stop", 0)
    return Turn(completion, [], None, {}, trainable=trainable)


def episode(name, reward, *turns, status=EpisodeStatus.OK):
    task = WorkflowTask(Task("t", "q"), name, "g", 0, 0, "train", 0)
    return Trajectory(task, turns or (turn(2),), status, reward=reward)


def grpo_of(*trajectories, **options):
    return grpo([credit_of(Group("g", trajectories))], AdvantageOptions(**options))


def advantages_of(*trajectories, **options):
    found = grpo_of(*trajectories, **options)
    return {name: [a.tolist() for a in arrays] for name, arrays in found.items()}


def test_advantage_is_reward_minus_mean_over_unbiased_std():
    # rewards 1 0 0 1: mean 0.5, std sqrt(4 * 0.25 / 3) = 0.577350
    found = advantages_of(
        episode("a", 1.0), episode("b", 0.0), episode("c", 0.0), episode("d", 1.0)
    )
    assert found["a"][0] == pytest.approx([0.5 / 0.577351] * 2, abs=1e-6)
    assert found["b"][0] == pytest.approx([-0.5 / 0.577351] * 2, abs=1e-6)


def test_without_std_the_advantage_is_the_centred_reward():
    found = advantages_of(episode("a", 1.0), episode("b", 0.0), normalize_std=False)
    assert found == {"a": [[0.5, 0.5]], "b": [[-0.5, -0.5]]}


def test_every_sampled_token_of_every_trainable_turn_gets_the_advantage():
    first = episode("a", 1.0, turn(3), turn(2, trainable=False), turn(1))
    found = advantages_of(first, episode("b", 0.0), normalize_std=False)
    assert found["a"] == [[0.5, 0.5, 0.5], [], [0.5]]


def test_an_episode_counts_once_in_the_mean_whatever_its_turns():
    many = episode("a", 1.0, turn(1), turn(1), turn(1))
    found = advantages_of(many, episode("b", 0.0), episode("c", 0.0), normalize_std=False)
    assert found["b"][0] == pytest.approx([-1 / 3, -1 / 3])


def test_invalid_episodes_are_absent_and_leave_the_mean_alone():
    failed = episode("x", 100.0, status=EpisodeStatus.TIMEOUT)
    found = advantages_of(failed, episode("a", 1.0), episode("b", 0.0), normalize_std=False)
    assert found == {"a": [[0.5, 0.5]], "b": [[-0.5, -0.5]]}


def test_episodes_that_nobody_rewarded_have_advantage_zero():
    assert advantages_of(episode("a", None), episode("b", None)) == {
        "a": [[0.0, 0.0]],
        "b": [[0.0, 0.0]],
    }


def test_equal_rewards_give_exact_zeros():
    found = grpo_of(*(episode(n, 0.1) for n in "abcdefg"))
    assert all(
        (a == 0).all() and a.dtype == np.float32 for arrays in found.values() for a in arrays
    )


def test_a_group_without_valid_episodes_is_empty():
    assert advantages_of(episode("x", None, status=EpisodeStatus.JUDGE_ERROR)) == {}


def test_groups_do_not_know_of_each_other():
    one = credit_of(Group("g", (episode("a", 1.0), episode("b", 0.0))))
    other = credit_of(Group("h", (episode("c", 7.0), episode("d", 5.0))))
    found = grpo([one, other], AdvantageOptions(normalize_std=False))
    assert {name: turns[0][0] for name, turns in found.items()} == {
        "a": 0.5,
        "b": -0.5,
        "c": 1.0,
        "d": -1.0,
    }
