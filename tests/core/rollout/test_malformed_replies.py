"""What a malformed reply does to its episode: its end, its reward, and nothing to its tokens."""

import asyncio

import pytest

from ajet import GroupJudge, Task, Workflow, WorkflowOutput
from ajet.core.errors import RunFailed
from ajet.core.judge.judge import BaseJudge
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.limits import MalformedPolicy
from ajet.core.trajectory.samples import to_samples
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "required": ["a"]}},
}
BAD_CALL = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
CHECKED = MalformedPolicy(("nonsense", "wrong_toolcall"), reward=-0.5)


class Right(BaseJudge):
    asked = 0

    def compute_reward(self, workflow_task, workflow_output):
        self.asked += 1
        return 1.0, True


class ThreeCalls(Workflow):
    """Goes on whatever comes, until the model is refused."""

    agents = ("default", "default", "default")

    async def execute(self, workflow_task, tuner):
        messages = [{"role": "user", "content": "2+2?"}]
        for agent in self.agents:
            reply = await tuner.chat(messages, [ADD], agent_name=agent)
            messages += [reply, {"role": "user", "content": "again"}]
        return WorkflowOutput(metadata={"final_answer": "4"})


def said(*replies):
    return ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: replies[int(request_id[-4:])])


async def episode(*replies, workflow=ThreeCalls, policy=CHECKED, judge=None, mode="train"):
    runner = episode_runner(workflow, said(*replies), TOKENIZER, judge or Right(), malformed=policy)
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "2+2?")], step=0, mode=mode, num_repeat=1)
    )
    return group.trajectories[0]


async def test_a_malformed_reply_is_the_last_and_the_episode_gets_the_configured_reward():
    judge = Right()
    t = await episode("fine", BAD_CALL, "never said", judge=judge)
    assert len(t.turns) == 2
    assert t.status is EpisodeStatus.TRUNCATED
    assert t.error == (
        "turn 1's reply is malformed (wrong_toolcall: add: 'a' is a required property)"
    )
    assert (t.reward, t.is_success, t.reward_breakdown) == (-0.5, False, {"malformed": -0.5})
    assert judge.asked == 0
    assert t.is_valid
    assert [turn.notes.malformed for turn in t.turns] == [
        {},
        {"wrong_toolcall": "add: 'a' is a required property"},
    ]


async def test_the_ids_of_a_malformed_reply_are_trained_as_they_were_sampled():
    from ajet.core.advantage import EstimatorSettings, estimate
    from ajet.core.learning.credit import credit_of

    runner = episode_runner(
        ThreeCalls, said("fine", BAD_CALL), TOKENIZER, Right(), malformed=CHECKED
    )
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "2+2?")], step=0, mode="train", num_repeat=2)
    )
    [one, _] = to_samples([group], estimate([credit_of(group)], EstimatorSettings()).advantages)
    last = group.trajectories[0].turns[1].completion
    assert last.token_ids == (*TOKENIZER.encode(BAD_CALL, add_special_tokens=False), 257)
    assert tuple(one.token_ids[-len(last.token_ids) :]) == last.token_ids
    assert one.loss_mask[-len(last.token_ids) :].all()


async def test_without_termination_the_episode_goes_on_and_its_reward_is_replaced_all_the_same():
    policy = MalformedPolicy(("wrong_toolcall",), ends_episode=False, reward=0.0)
    t = await episode(BAD_CALL, "fine", "fine", policy=policy)
    assert (len(t.turns), t.status, t.error) == (3, EpisodeStatus.OK, None)
    assert (t.reward, t.is_success) == (0.0, False)


async def test_a_reward_of_the_workflow_is_replaced_too():
    class Pays(ThreeCalls):
        async def execute(self, workflow_task, tuner):
            await tuner.chat([{"role": "user", "content": "2+2?"}])
            return WorkflowOutput(reward=1.0, is_success=True)

    t = await episode("\ufffd\ufffd", workflow=Pays)
    assert (t.reward, t.is_success) == (-0.5, False)
    assert t.error == "turn 0's reply is malformed (nonsense: U+FFFD 2x)"


async def test_only_what_is_in_the_list_is_checked_and_the_default_is_nothing():
    t = await episode(BAD_CALL, "caf\ufffd", "\x00", policy=MalformedPolicy())
    assert (t.reward, len(t.turns)) == (1.0, 3)
    t = await episode("fine", "naïve", "\ufffd", policy=MalformedPolicy(("non_ascii",)))
    assert len(t.turns) == 2


async def test_replies_of_agents_that_are_not_trained_do_not_count():
    class TwoAgents(ThreeCalls):
        trainable_targets = ("solver",)
        agents = ("critic", "solver", "critic")

    assert (await episode(BAD_CALL, "fine", "\x00", workflow=TwoAgents)).reward == 1.0
    t = await episode("fine", BAD_CALL, "fine", workflow=TwoAgents)
    assert (t.reward, len(t.turns)) == (-0.5, 2)


async def test_a_validation_counts_a_malformed_episode_as_a_failure():
    t = await episode("fine", BAD_CALL, mode="eval")
    assert (t.reward, t.is_success) == (-0.5, False)


@pytest.mark.parametrize("ends", [True, False])
async def test_a_call_with_token_ids_is_checked_as_text(ends):
    class Tokens(Workflow):
        async def execute(self, workflow_task, tuner):
            await tuner.generate([72, 105])
            await tuner.generate([72, 105])
            return WorkflowOutput()

    policy = MalformedPolicy(("nonsense", "wrong_toolcall"), ends_episode=ends)
    t = await episode("\x01", "<tool_call>", workflow=Tokens, policy=policy)
    assert len(t.turns) == (1 if ends else 2)
    assert t.turns[0].notes.malformed == {"nonsense": "U+0001 1x"}
    assert not t.turns[-1].notes.malformed or ends  # token ids carry no calls
    assert t.reward == -1.0


async def test_a_failed_episode_stays_a_failure():
    class Breaks(ThreeCalls):
        async def execute(self, workflow_task, tuner):
            await tuner.chat([{"role": "user", "content": "2+2?"}])
            raise ValueError("mine")

    policy = MalformedPolicy(("nonsense",), ends_episode=False)
    runner = episode_runner(
        Breaks, said("\x00"), TOKENIZER, Right(), malformed=policy, max_failure_rate=1.0
    )
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "2+2?")], step=0, mode="train", num_repeat=1)
    )
    [t] = group.trajectories
    assert (t.status, t.reward) == (EpisodeStatus.AGENT_ERROR, None)


async def test_a_tool_whose_schema_is_none_is_said_in_one_line():
    class BadSchema(ThreeCalls):
        async def execute(self, workflow_task, tuner):
            tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "dict"}}}
            await tuner.chat([{"role": "user", "content": "2+2?"}], [tool])
            return WorkflowOutput()

    runner = episode_runner(
        BadSchema, said(BAD_CALL), TOKENIZER, Right(), malformed=CHECKED, max_failure_rate=1.0
    )
    [group] = await runner.rollout(
        RolloutRequest([Task("t", "2+2?")], step=0, mode="train", num_repeat=1)
    )
    assert group.trajectories[0].error.startswith(
        "ConfigError: tool 'add': its parameters are not a JSON schema: 'dict' is not valid"
    )


class RightInEveryGroup(GroupJudge):
    async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        return [(float(len(workflow_tasks)), True)] * len(workflow_tasks)


async def test_a_judge_of_groups_does_not_wait_for_a_member_that_was_malformed():
    replies = {0: "fine", 1: BAD_CALL}
    endpoint = ScriptedEndpoint(TOKENIZER, lambda prompt, name: replies[int(name[-6])])
    runner = episode_runner(ThreeCalls, endpoint, TOKENIZER, RightInEveryGroup(), malformed=CHECKED)
    [group] = await asyncio.wait_for(
        runner.rollout(RolloutRequest([Task("t", "2+2?")], step=0, mode="train", num_repeat=2)), 20
    )
    assert [t.reward for t in group.trajectories] == [1.0, -0.5]


async def test_what_was_sampled_is_kept_even_where_a_tools_schema_is_a_mistake():
    loop = {"name": "add", "parameters": {"$ref": "#"}}

    class Asks(Workflow):
        async def execute(self, workflow_task, tuner):
            tools = [{"type": "function", "function": loop}]
            await tuner.chat([{"role": "user", "content": "2+2?"}], tools)

    with pytest.raises(RunFailed, match="its parameters refer to themselves"):
        await episode(BAD_CALL, workflow=Asks)
