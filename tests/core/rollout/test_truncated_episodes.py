"""Which limit cut an episode is data on its trajectory, and selections and metrics read that."""

import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.inference.endpoint import ContextOverflow
from ajet.core.rollout.batch import without_truncated
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.base_recorder import SamplingOverrides
from ajet.core.trajectory.limits import EpisodeTruncated, Limit, MalformedPolicy
from ajet.core.trajectory.trajectory import SelectionName
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
PROMPT = [{"role": "user", "content": "hi"}]


async def rolled_out(workflow, endpoint=None, num_repeat=1, **limits):
    """The group of one task. Its replies are 10 letters é: 20 tokens of bytes, and one that ends
    the turn."""
    endpoint = endpoint or ScriptedEndpoint(TOKENIZER, lambda *_: "é" * 10)
    runner = episode_runner(workflow, endpoint, TOKENIZER, **limits)
    request = RolloutRequest([Task("t", "hi")], step=1, mode="train", num_repeat=num_repeat)
    [group] = await runner.rollout(request)
    return group


class TalksOn(Workflow):
    """Calls the model again and again, until a call is refused."""

    async def execute(self, workflow_task, model_tuner):
        messages = list(PROMPT)
        while True:
            messages += [await model_tuner.chat(messages), *PROMPT]


class AnswersOnce(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat(PROMPT)
        return WorkflowOutput(reward=float(workflow_task.rollout_index))


class TooLong(ScriptedEndpoint):
    async def generate(self, prompt_ids, sampling, request_id):
        raise ContextOverflow(f"request {request_id!r}: no room for {len(prompt_ids)} tokens")


@pytest.mark.parametrize(
    ("limits", "limit", "detail"),
    [
        ({"max_prompt_length": 9}, Limit.MAX_PROMPT_LENGTH, "the first prompt has "),
        (
            {"max_model_len": 120, "max_response_length_in_one_turn": 5},
            Limit.MAX_MODEL_LEN,
            "an episode may hold 120",
        ),
        ({"max_model_len": 98}, Limit.MAX_MODEL_LEN, "filled the episode's 98 tokens"),
        (
            {"max_prompt_length": 97, "max_response_length": 1},
            Limit.MAX_RESPONSE_LENGTH,
            "filled the episode's 98 tokens",
        ),
        ({"max_steps": 1}, Limit.MAX_STEPS, "the episode used its 1 calls"),
        (
            {"malformed": MalformedPolicy(("non_ascii",))},
            Limit.MALFORMED_REPLY,
            "turn 0's reply is malformed (non_ascii",
        ),
    ],
)
async def test_the_limit_that_ends_an_episode_is_recorded_by_its_key(limits, limit, detail):
    [trajectory] = (await rolled_out(TalksOn, **limits)).trajectories
    assert (trajectory.status, trajectory.truncation.limit) == ("truncated", limit)
    assert detail in trajectory.truncation.detail
    assert trajectory.error == trajectory.truncation.detail


async def test_a_prompt_that_the_engine_refuses_is_cut_by_the_engines_context():
    [trajectory] = (await rolled_out(TalksOn, TooLong(TOKENIZER, None))).trajectories
    assert (trajectory.status, trajectory.truncation.limit) == ("truncated", Limit.ENGINE)


@pytest.mark.parametrize(
    "reason",
    [
        "request quota of my tool is used up",
        "the program used more than my patience",
        "the first prompt has a typo",
        "turn 0's reply is malformed",
        "",
    ],
)
async def test_a_workflows_own_limit_is_its_own_whatever_its_words(reason):
    class Stops(Workflow):
        async def execute(self, workflow_task, model_tuner):
            model_tuner.truncate(reason)
            return WorkflowOutput(reward=0.0)

    group = await rolled_out(Stops)
    [trajectory] = group.trajectories
    assert (trajectory.status, trajectory.error) == ("truncated", reason)
    assert trajectory.truncation.limit is Limit.WORKFLOW


@pytest.mark.parametrize(("max_steps", "limit"), [(1, Limit.WORKFLOW), (9, Limit.MAX_STEPS)])
async def test_a_limit_that_the_workflow_lowered_is_its_own(max_steps, limit):
    class Tightens(TalksOn):
        async def execute(self, workflow_task, model_tuner):
            model_tuner.tighten_limits(max_steps=max_steps)
            return await super().execute(workflow_task, model_tuner)

    [trajectory] = (await rolled_out(Tightens, max_steps=2)).trajectories
    assert trajectory.truncation.limit is limit


async def test_a_workflow_that_raises_the_truncation_itself_names_its_own_limit():
    class Raises(Workflow):
        async def execute(self, workflow_task, model_tuner):
            raise EpisodeTruncated("the episode used its 3 calls (max_steps)")

    [trajectory] = (await rolled_out(Raises)).trajectories
    assert (trajectory.status, trajectory.truncation.limit) == ("truncated", Limit.WORKFLOW)


async def test_mask_truncated_leaves_out_an_episode_whose_only_reply_was_cut():
    class CutsTwo(ScriptedEndpoint):
        """Members 0 and 2 answer with 20 tokens and an end, members 1 and 3 with 2."""

        def __init__(self):
            super().__init__(
                TOKENIZER, lambda _, request: "é" * 10 if request[-6] in "02" else "no"
            )

    group = await rolled_out(
        AnswersOnce, CutsTwo(), num_repeat=4, max_response_length_in_one_turn=8
    )
    assert [t.status for t in group.trajectories] == ["ok"] * 4
    assert [t.cut_by for t in group.trajectories] == [
        Limit.MAX_RESPONSE_LENGTH_IN_ONE_TURN,
        None,
    ] * 2
    masked = without_truncated(group)
    assert [t.workflow_task.rollout_index for t in masked.valid] == [1, 3]
    assert not without_truncated(group, whole=True).valid
    cut = masked.trajectories[0]
    assert (cut.left_out, cut.reward) == (SelectionName.OVERLONG, 0.0)
    assert cut.error == (
        "ajet.rollout.max_response_length_in_one_turn cut it (overlong.mask_truncated)"
    )


async def test_a_reply_that_was_cut_on_the_way_does_not_cut_the_episode():
    class AsksTwice(Workflow):
        async def execute(self, workflow_task, model_tuner):
            first = await model_tuner.chat(PROMPT)
            await model_tuner.chat([*PROMPT, first, *PROMPT])
            return WorkflowOutput(reward=1.0)

    class CutsTheFirst(ScriptedEndpoint):
        def __init__(self):
            super().__init__(TOKENIZER, lambda _, request: "no" if request[-1] == "1" else "é" * 9)

    group = await rolled_out(AsksTwice, CutsTheFirst(), max_response_length_in_one_turn=8)
    [trajectory] = group.trajectories
    assert [turn.is_cut for turn in trajectory.turns] == [True, False]
    assert trajectory.cut_by is None and without_truncated(group).valid


@pytest.mark.parametrize(
    ("asked", "limit"),
    [(4, Limit.WORKFLOW), (8, Limit.MAX_RESPONSE_LENGTH_IN_ONE_TURN)],
)
async def test_a_reply_that_the_agents_own_max_tokens_cut_names_the_workflows_limit(asked, limit):
    class AsksForFew(Workflow):
        async def execute(self, workflow_task, model_tuner):
            overrides = SamplingOverrides(max_tokens=asked)
            await model_tuner._recorder.chat(PROMPT, overrides=overrides)
            return WorkflowOutput(reward=1.0)

    group = await rolled_out(AsksForFew, max_response_length_in_one_turn=8)
    [trajectory] = group.trajectories
    assert trajectory.cut_by is limit
    assert not without_truncated(group).valid


@pytest.mark.parametrize("ends_episode", [True, False])
async def test_a_malformed_episode_is_not_masked_as_truncated(ends_episode):
    policy = MalformedPolicy(("non_ascii",), ends_episode, reward=-1.0)
    group = await rolled_out(AnswersOnce, max_response_length_in_one_turn=8, malformed=policy)
    [trajectory] = group.trajectories
    assert trajectory.turns[-1].is_cut and trajectory.is_malformed
    [kept] = without_truncated(group).valid
    assert kept.reward == -1.0


async def test_a_failed_episode_that_counts_as_zero_is_not_masked_as_truncated():
    class Fails(Workflow):
        async def execute(self, workflow_task, model_tuner):
            await model_tuner.chat(PROMPT)
            raise ValueError("no")

    group = await rolled_out(
        Fails, max_response_length_in_one_turn=8, failure_policy="zero", max_failure_rate=1.0
    )
    [trajectory] = group.trajectories
    assert (trajectory.status, trajectory.outcome) == ("truncated", "agent_error")
    assert trajectory.cut_by is None and without_truncated(group) == group
