import numpy as np
import pytest

from ajet.core.inference.endpoint import Completion
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.sample import TurnSpan
from ajet.core.trajectory.samples import by_turn, to_samples
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn


def turn(prompt, sampled, version=0, trainable=True):
    completion = Completion(tuple(prompt), tuple(sampled), (-1.0,) * len(sampled), "stop", version)
    return Turn(completion, [], None, {}, trainable=trainable)


def episode(index, turns, status=EpisodeStatus.OK, reward=1.0, group_id="g"):
    task = WorkflowTask(Task("t", "q"), f"{group_id}{index}", group_id, index, 0, "train", 0)
    return Trajectory(task, tuple(turns), status, reward=reward)


def array(*numbers):
    return np.array(numbers, dtype=np.float32)


def test_two_turns_and_seven_tokens_written_out():
    """[sys que] [a0 a1] [obs] [b0 stop]: the example of TrainingSample."""
    trajectory = episode(0, [turn([1, 2], [3, 4], 6), turn([1, 2, 3, 4, 5], [6, 7], 8)])
    (sample,) = to_samples([Group("g", (trajectory,))], {"g0": [array(0.5, 0.5), array(-1, 2)]})
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert sample.loss_mask.tolist() == [False, False, True, True, False, True, True]
    assert sample.logprobs.tolist() == [0, 0, -1, -1, 0, -1, -1]
    assert sample.advantages.tolist() == [0, 0, 0.5, 0.5, 0, -1, 2]
    assert sample.spans == (TurnSpan(2, 4, 0), TurnSpan(5, 7, 1))
    assert (sample.episode_id, sample.group_id) == ("g0", "g")
    assert (sample.min_policy_version, sample.max_policy_version) == (6, 8)


def test_a_forked_episode_gives_each_timeline_its_own_advantages():
    turns = [turn([1], [2]), turn([1, 2, 8], [3]), turn([1, 2, 9], [4, 5])]
    given = {"g0": [array(1), array(2), array(3, 4)]}
    one, two = to_samples([Group("g", (episode(0, turns),))], given)
    assert one.advantages.tolist() == [0, 1, 0, 2]
    assert two.advantages.tolist() == [0, 0, 0, 3, 4]


def test_only_valid_episodes_become_samples():
    turns = [turn([1], [2])]
    group = Group(
        "g",
        (
            episode(0, turns, EpisodeStatus.TIMEOUT, reward=None),
            episode(1, turns, EpisodeStatus.TRUNCATED),
            episode(2, turns, EpisodeStatus.JUDGE_ERROR, reward=None),
        ),
    )
    assert [s.episode_id for s in to_samples([group], {"g1": [array(1)]})] == ["g1"]


def test_the_order_is_that_of_groups_and_members_whoever_ended_first():
    def group(name, *indices):
        return Group(name, tuple(episode(i, [turn([1], [2])], group_id=name) for i in indices))

    groups = [group("b", 1, 0), group("a", 0, 2, 1)]
    given = {f"{name}{i}": [array(0)] for name in "ab" for i in range(3)}
    order = [sample.episode_id for sample in to_samples(groups, given)]
    assert order == ["b0", "b1", "a0", "a1", "a2"]


def test_advantages_of_another_length_are_an_error_of_the_estimator():
    group = Group("g", (episode(0, [turn([1], [2, 3])]),))
    with pytest.raises(AssertionError, match="turn 0: 1 advantages for 2 sampled tokens"):
        to_samples([group], {"g0": [array(1)]})
    with pytest.raises(AssertionError, match="g0 is valid but has no advantages"):
        to_samples([group], {})


def as_lists(found):
    return {name: [turn.tolist() for turn in turns] for name, turns in found.items()}


def test_by_turn_is_the_other_way():
    """Of a forked episode, an agent that is not trained, and turns on several timelines."""
    turns = [
        turn([1], [2]),
        turn([1, 2, 8], [3, 3], trainable=False),
        turn([1, 2, 8], [3]),
        turn([1, 2, 9], [4, 5]),
        turn([1, 7], [6], trainable=False),
    ]
    groups = [Group("g", (episode(0, turns), episode(1, []), episode(2, [turn([1], [2])])))]
    given = {"g0": [array(1), array(), array(2), array(3, 4), array()], "g2": [array(5)]}
    samples = to_samples(groups, given)
    arrays = [sample.advantages for sample in samples]
    found = by_turn(samples, arrays, groups)
    assert as_lists(found) == {"g0": [[1], [], [2], [3, 4], []], "g1": [], "g2": [[5]]}
    assert to_samples(groups, found)[0].advantages.tolist() == samples[0].advantages.tolist()
