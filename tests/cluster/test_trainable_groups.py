"""What the driver leaves out of groups for the ranks changes nothing of what they train on."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("ray")

from ajet.cluster.trainer_group import _trainable
from ajet.core.advantage import EstimatorSettings
from ajet.core.advantage.kl_controller import FixedKLController
from ajet.core.learning.learner import Learner, LearnerSettings
from ajet.core.learning.teacher import Teacher
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.trajectory.turn import TurnNotes
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.core.record.record_fixtures import episode, group_of, two_turns
from tests.core.update.update_fixtures import tiny_model


def test_ranks_teach_what_the_driver_would_with_hints_and_without_rewards():
    policy = Policy(tiny_model(), UpdateSettings())
    settings = LearnerSettings(EstimatorSettings("grpo"))
    teacher = Teacher(policy, 0.0, is_shown_hints=True)
    learner = Learner(policy, None, FixedKLController(0.0), settings, teacher)
    first, second = two_turns(ids=range(10, 20))
    first = replace(first, notes=TurnNotes(hinted_prompt=[10, 60, 61, *range(11, 20)]))
    group = group_of(*(episode(member=n, reward=None, turns=(first, second)) for n in range(2)))
    whole, sent = (learner.make_batch([each]) for each in (group, _trainable(group)))
    assert len(whole.samples) == len(sent.samples) == 2
    for ours, theirs in zip(whole.samples, sent.samples, strict=True):
        assert np.array_equal(ours.token_ids, theirs.token_ids)
        assert np.array_equal(ours.teacher_logprobs, theirs.teacher_logprobs)
        assert theirs.teacher_logprobs.any() and not theirs.advantages.any()


def test_ranks_know_which_adapter_sampled_a_turn_and_what_each_agent_earned():
    first, second = two_turns(ids=range(10, 20))
    turns = (
        replace(first, notes=TurnNotes(adapter="pro")),
        replace(second, notes=TurnNotes(adapter="con")),
    )
    output = WorkflowOutput(metadata={"secret": 1}, agent_rewards={"pro": 2.0, "con": -2.0})
    [sent] = _trainable(group_of(replace(episode(turns=turns), output=output))).trajectories
    assert [turn.adapter for turn in sent.turns] == ["pro", "con"]
    assert sent.agent_rewards == {"pro": 2.0, "con": -2.0}
    assert sent.output is not None and not sent.output.metadata
