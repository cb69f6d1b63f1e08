"""Agents that talk to each other, edit their memory or ask twice: whose tokens are trained where.

A reply "ok" is 3 tokens: o, k and the end of the turn.
"""

import numpy as np
import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.advantage import EstimatorSettings, estimate
from ajet.core.learning.credit import credit_of
from ajet.core.record.timeline_counts import (
    ANOTHER_AGENT,
    NOT_RECORDED,
    SAMPLED_AGAIN,
    WENT_BACK,
    TimelineCounts,
)
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.samples import to_samples
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
STOP = TOKENIZER.eos_token_id


def user(text):
    return {"role": "user", "content": text}


def advantages(group):
    return estimate([credit_of(group)], EstimatorSettings()).advantages


async def trained(workflow, *, num_repeat=1, said=lambda *_: "ok", **limits):
    """The group of one task, its samples, and what was counted."""
    endpoint = ScriptedEndpoint(TOKENIZER, said)
    runner = episode_runner(workflow, endpoint, TOKENIZER, **limits)
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=num_repeat)
    )
    samples = to_samples([group], advantages(group))
    return group, samples, TimelineCounts.from_groups([group], samples)


def spans(samples):
    """Which turns each timeline trains."""
    return [[span.turn_index for span in sample.spans] for sample in samples]


def words(sample):
    """What a timeline trains, as text."""
    return TOKENIZER.decode(sample.token_ids[sample.loss_mask].tolist(), skip_special_tokens=True)


class Debate(Workflow):
    """Two agents, two rounds: each one's words are the other's user messages."""

    async def execute(self, workflow_task, tuner):
        talks = {
            name: [{"role": "system", "content": f"You are {name}."}] for name in ("ann", "bob")
        }
        heard = workflow_task.task.main_query
        for name in ("ann", "bob", "ann", "bob"):
            talks[name].append(user(heard))
            reply = await tuner.chat(talks[name], agent_name=name)
            talks[name].append(reply)
            heard = reply["content"]
        reward = float(workflow_task.rollout_index == 0)
        return WorkflowOutput(reward=reward, is_success=bool(reward))


def first_letters(prompt, request_id):
    return "abcd"[int(request_id[-4:])] * 2


async def test_two_agents_that_talk_to_each_other_are_two_timelines_of_one_episode():
    group, samples, counts = await trained(Debate, said=first_letters)
    assert spans(samples) == [[0, 2], [1, 3]]
    assert [words(sample) for sample in samples] == ["aacc", "bbdd"]
    assert [sample.num_trained for sample in samples] == [6, 6]  # 2 letters and a stop, twice
    assert group.trajectories[0].num_sampled == 12
    assert {sample.episode_id for sample in samples} == {group.trajectories[0].episode_id}
    assert (counts.calls, counts.timelines, counts.splits) == (4, 2, {ANOTHER_AGENT: 1})


async def test_what_an_agent_hears_from_the_other_is_context_and_never_trained_there():
    _, [ann, bob], _ = await trained(Debate, said=first_letters)
    assert "aa" in TOKENIZER.decode(bob.token_ids[~bob.loss_mask].tolist())
    assert "bb" in TOKENIZER.decode(ann.token_ids[~ann.loss_mask].tolist())


async def test_an_episode_of_two_timelines_is_credited_once():
    """Rewards 1, 0, 0: mean 1/3, whatever the number of rows. Each advantage stands on all
    tokens of its episode, on both timelines."""
    group, samples, _ = await trained(Debate, num_repeat=3)
    assert len(samples) == 6
    std = np.std([1, 0, 0], ddof=1)
    expected = {0: (2 / 3) / (std + 1e-6), 1: (-1 / 3) / (std + 1e-6), 2: (-1 / 3) / (std + 1e-6)}
    for sample in samples:
        member = int(sample.episode_id[-2:])
        np.testing.assert_allclose(sample.advantages[sample.loss_mask], expected[member], rtol=1e-6)
        assert not sample.advantages[~sample.loss_mask].any()
    assert sum(sample.num_trained for sample in samples) == sum(
        t.num_sampled for t in group.trajectories
    )


async def test_a_sub_agent_that_is_not_a_target_is_context_only():
    class OneTrained(Debate):
        trainable_targets = ["ann"]

    _, [ann], counts = await trained(OneTrained, said=first_letters)
    assert (words(ann), spans([ann])) == ("aacc", [[0, 2]])
    assert "bb" in TOKENIZER.decode(ann.token_ids[~ann.loss_mask].tolist())
    assert counts.not_trained == {"other_agent": 6}
    assert (counts.sampled, counts.trained) == (12, 6)


async def test_a_sub_agent_within_one_conversation_is_a_gap_in_its_timeline():
    class Alternates(Workflow):
        trainable_targets = ["ann"]

        async def execute(self, workflow_task, tuner):
            messages = []
            for name in ("ann", "bob", "ann"):
                messages.append(user("go on"))
                messages.append(await tuner.chat(messages, agent_name=name))
            return WorkflowOutput(reward=1.0)

    _, [only], counts = await trained(Alternates, said=first_letters)
    assert (words(only), spans([only])) == ("aacc", [[0, 2]])
    assert counts.not_trained == {"other_agent": 3}


async def test_an_agent_that_edits_its_memory_keeps_what_it_said_before():
    class Forgets(Workflow):
        async def execute(self, workflow_task, tuner):
            messages = [user("one")]
            messages.append(await tuner.chat(messages))
            messages.append(user("two"))
            messages.append(await tuner.chat(messages))
            await tuner.chat([user("Summary: we counted."), user("three")])
            return WorkflowOutput(reward=1.0)

    _, samples, counts = await trained(Forgets, said=first_letters)
    assert [words(sample) for sample in samples] == ["aabb", "cc"]
    assert counts.splits == {NOT_RECORDED: 1}


async def test_an_agent_that_takes_back_a_turn_shares_what_came_before():
    class TakesBack(Workflow):
        async def execute(self, workflow_task, tuner):
            messages = [user("one")]
            messages.append(await tuner.chat(messages))
            await tuner.chat([*messages, user("two")])
            await tuner.chat([*messages, user("no, three")])
            return WorkflowOutput(reward=1.0)

    _, samples, counts = await trained(TakesBack, said=first_letters)
    assert spans(samples) == [[0, 1], [2]]
    assert [words(sample) for sample in samples] == ["aabb", "cc"]
    assert counts.splits == {WENT_BACK: 1}


async def test_retries_of_one_prompt_are_each_trained_once():
    class AsksTwice(Workflow):
        async def execute(self, workflow_task, tuner):
            await tuner.chat([user("one")])
            reply = await tuner.chat([user("one")])
            await tuner.chat([user("one"), reply, user("two")])
            return WorkflowOutput(reward=1.0)

    _, samples, counts = await trained(AsksTwice)  # the same words, to make it hard
    assert spans(samples) == [[0, 2], [1]]
    assert [sample.num_trained for sample in samples] == [6, 3]
    assert counts.splits == {SAMPLED_AGAIN: 1}


class Talks(Workflow):
    """Three calls of one conversation."""

    async def execute(self, workflow_task, tuner):
        messages = []
        for _ in range(3):
            messages.append(user("hi"))
            messages.append(await tuner.chat(messages))
        return WorkflowOutput(reward=1.0)


class Bytes(ScriptedEndpoint):
    """Samples "the" as its three bytes, where an encoder has one token for it."""

    async def generate(self, prompt_ids, sampling, request_id):
        from ajet.core.inference.endpoint import Completion

        ids = (*b"the", STOP)
        return Completion(tuple(prompt_ids), ids, (-0.5,) * 4, "stop", 0)


@pytest.mark.parametrize(("which", "members"), [("none", []), ("first", [0]), ("all", [0, 1, 2])])
async def test_drift_is_looked_for_in_the_members_that_the_config_names(which, members):
    """Each member makes three calls; the second and the third go on from recorded ids."""
    endpoint = Bytes(TOKENIZER, None)
    runner = episode_runner(Talks, endpoint, TOKENIZER, check_drift=which)
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=3)
    )
    found = [[turn.notes.get("drift") for turn in t.turns] for t in group.trajectories]
    first = len(group.trajectories[0].turns[0].completion.prompt_ids)
    assert found == [
        [None, first, first] if member in members else [None] * 3 for member in range(3)
    ]
    counts = TimelineCounts.from_groups([group], to_samples([group], advantages(group)))
    assert counts.drift_checked == 2 * len(members)
    assert counts.timelines == 3  # drift splits nothing: what was sampled goes on as it is


async def test_a_validation_is_not_checked_for_drift():
    runner = episode_runner(Talks, Bytes(TOKENIZER, None), TOKENIZER, check_drift="all")
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "q")], step=0, mode="eval", num_repeat=1)
    )
    assert "drift_checked" not in group.trajectories[0].turns[1].notes
