"""A group with more members than it needs ends with the first that are done, whatever the clock."""

import asyncio
import random

import torch

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.judge.judge import GroupJudge
from ajet.core.rollout.request import RolloutRequest
from tests.core.rollout.tiny_model import tiny_engine
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = [Task(f"t{i}", f"question {i}") for i in range(3)]


class CallsByPlace(Workflow):
    """Member i of a group calls 1 + i times, members 2 and 3 equally often; a random nap a turn."""

    nap_s = 0.003

    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        for _ in range(1 + min(workflow_task.rollout_index, 2)):
            await asyncio.sleep(random.random() * self.nap_s)
            messages.append(await model_tuner.chat(messages))
            messages.append({"role": "user", "content": "go on"})
        return WorkflowOutput(reward=float(workflow_task.rollout_index))


async def rollout(workflow, endpoint, judge=None, num_repeat=2, redundancy=3, **limits):
    limits = {"max_response_length_in_one_turn": 6, **limits}
    runner = episode_runner(workflow, endpoint, TOKENIZER, judge, **limits)
    return await runner.rollout(
        RolloutRequest(TASKS, step=0, mode="train", num_repeat=num_repeat, redundancy=redundancy)
    )


def content(groups):
    members = [t for group in groups for t in group.trajectories]
    return [
        (t.episode_id, str(t.status), t.left_out, t.reward, [x.completion for x in t.turns])
        for t in members
    ]


async def test_with_waves_the_members_kept_and_all_that_is_sampled_do_not_depend_on_timing():
    torch.set_num_threads(1)
    seen = []
    for limit in (4, 4, 15):
        engine = tiny_engine(TOKENIZER, 5)
        groups = await rollout(CallsByPlace, engine, max_env_worker=limit)
        await engine.close()
        seen.append(content(groups))
        assert [[t.workflow_task.rollout_index for t in g.valid] for g in groups] == [[0, 1]] * 3
    assert seen[0] == seen[1]
    by_status = [[str(t.status) for t in group.trajectories] for group in groups]
    assert by_status == [["ok", "ok", "aborted", "aborted", "aborted"]] * 3
    stopped = groups[0].trajectories[2]
    assert stopped.left_out == "redundancy"
    assert stopped.error == "the group had enough members (ajet.rollout.group_size_redundancy)"
    assert len(stopped.turns) == 2  # it was stopped before the third wave


async def test_members_that_end_in_the_same_wave_are_kept_by_their_place_and_the_others_recorded():
    class AllAtOnce(CallsByPlace):
        async def execute(self, workflow_task, model_tuner):
            await asyncio.sleep(0.01 * (5 - workflow_task.rollout_index))
            await model_tuner.chat([{"role": "user", "content": "hi"}])
            return WorkflowOutput(reward=1.0)

    engine = tiny_engine(TOKENIZER, 5)
    groups = await rollout(AllAtOnce, engine)
    await engine.close()
    for group in groups:
        assert [t.workflow_task.rollout_index for t in group.valid] == [0, 1]
        surplus = group.trajectories[2]
        assert (surplus.status, surplus.outcome, surplus.reward) == ("aborted", "ok", 1.0)
        assert surplus.left_out == "redundancy"


async def test_without_waves_the_others_stop_at_once():
    class LastIsFirst(Workflow):
        async def execute(self, workflow_task, model_tuner):
            await model_tuner.chat([{"role": "user", "content": "hi"}])
            await asyncio.sleep(60 if workflow_task.rollout_index < 3 else 0)
            return WorkflowOutput(reward=1.0)

    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "yes")
    groups = await asyncio.wait_for(rollout(LastIsFirst, endpoint, max_env_worker=5), 5)
    for group in groups:
        assert [t.workflow_task.rollout_index for t in group.valid] == [3, 4]
        assert [len(t.turns) for t in group.trajectories[:3]] == [1, 1, 1]
    entered = [name for what, name in endpoint.events if what == "enter"]
    assert sorted(entered) == sorted(name for what, name in endpoint.events if what == "leave")


async def test_members_that_have_not_begun_when_their_group_is_complete_never_do():
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "yes")
    groups = await rollout(CallsByPlace, endpoint, max_env_worker=1)
    assert [len(g.valid) for g in groups] == [2, 2, 2]
    assert sum(what == "enter" for what, _ in endpoint.events) == 6
    assert groups[2].trajectories[4].left_out == "redundancy"


async def test_a_failed_member_is_made_up_for():
    class FirstFails(CallsByPlace):
        async def execute(self, workflow_task, model_tuner):
            output = await super().execute(workflow_task, model_tuner)
            if workflow_task.rollout_index == 0:
                raise ValueError("unlucky")
            return output

    engine = tiny_engine(TOKENIZER, 5)
    groups = await rollout(FirstFails, engine)
    await engine.close()
    for group in groups:
        assert [t.workflow_task.rollout_index for t in group.valid] == [1, 2]
        assert group.trajectories[0].status == "agent_error"


async def test_a_judge_of_groups_sees_those_that_ended_and_waits_for_no_other():
    class Counts(GroupJudge):
        async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
            return [(float(len(workflow_tasks)), True)] * len(workflow_tasks)

    class NoReward(CallsByPlace):
        async def execute(self, workflow_task, model_tuner):
            await super().execute(workflow_task, model_tuner)
            return WorkflowOutput()

    engine = tiny_engine(TOKENIZER, 5)
    groups = await asyncio.wait_for(rollout(NoReward, engine, Counts(), max_env_worker=4), 20)
    await engine.close()
    for group in groups:
        assert [t.workflow_task.rollout_index for t in group.valid] == [0, 1]
        assert {t.reward for t in group.valid} == {2.0}
