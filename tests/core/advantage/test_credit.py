from ajet.core.advantage.agent_steps import agent_steps
from ajet.core.inference.endpoint import Completion
from ajet.core.learning.credit import credit_of
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn


def turn(num_prompt, num_tokens, **more):
    completion = Completion((1,) * num_prompt, (2,) * num_tokens, (-1.0,) * num_tokens, "stop", 0)
    return Turn(completion, [], None, {}, **more)


def credit(*turns, reward=1.0):
    task = Task("t", "q", metadata={"tag": "Lake"})
    trajectory = Trajectory(
        WorkflowTask(task, "e", "g", 0, 0, "train", 0), turns, EpisodeStatus.OK, reward=reward
    )
    (episode,) = credit_of(Group("g", (trajectory,)))
    return episode


def test_what_no_turn_was_given_is_the_last_trained_turns():
    found = credit(
        turn(3, 2, reward=0.25), turn(6, 1), turn(9, 4, trainable=False, reward=0.5), reward=2.0
    )
    assert found.turn_rewards_T.tolist() == [0.25, 1.25, 0.5]
    assert found.lengths_T.tolist() == [2, 1, 0]
    assert found.tag == "Lake"


def test_agents_of_one_name_and_two_target_tags_are_two():
    found = credit(turn(3, 1, target_tag="guess"), turn(4, 1, target_tag="check"))
    assert len(set(found.agents_T)) == 2
    assert [own.turns_S.tolist() for own in agent_steps(found)] == [[0], [1]]


def test_the_response_is_the_longest_timeline_less_the_first_prompt():
    # 5 tokens of prompt; the second call ends at 5 + 3 + 4 + 2 = 14; the third begins anew.
    assert credit(turn(5, 3), turn(12, 2), turn(6, 1)).response_length == 9
    assert credit().response_length == 0
