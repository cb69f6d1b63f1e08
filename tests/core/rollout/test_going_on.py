"""A rollout that was lost goes on: its finished episodes are taken as they are."""

import asyncio

import pytest

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.rollout.answered import hash_of_request
from ajet.core.rollout.request import RolloutRequest
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.workflow.workflow import Workflow
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TASK = Task("t", "What is 1 + 1?")


class Asks(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        return WorkflowOutput(reward=float(workflow_task.rollout_index))


def runner():
    tokenizer = chat_tokenizer("qwen2_5")
    return episode_runner(Asks, ScriptedEndpoint(tokenizer, lambda prompt, _: "two"), tokenizer)


class FakeJournal:
    """Has these episodes, and keeps what ends."""

    keeps_calls = True

    def __init__(self, finished, answered=None):
        self.finished, self.kept = finished, []
        self.before, self.calls = answered or {}, {}

    def take(self, group_id):
        return self.finished

    def answered(self, group_id):
        return self.before

    def put(self, trajectory):
        self.kept.append(trajectory.episode_id)

    def put_call(self, plan, call):
        self.calls.setdefault(plan.episode_id, []).append(call)


async def rollout(journal, **options):
    request = RolloutRequest([TASK], step=2, mode="train", num_repeat=3, **options)
    groups = await runner().with_journal(journal).rollout(request)
    return groups[0].trajectories


async def test_finished_members_are_kept_and_not_run_again():
    whole = await rollout(FakeJournal({}))
    kept, journal = whole[1], FakeJournal({whole[1].episode_id: whole[1]})
    again = await rollout(journal)
    assert again[1] is kept
    assert journal.kept == [whole[0].episode_id, whole[2].episode_id]
    assert [t.reward for t in again] == [0.0, 1.0, 2.0]


async def test_finished_members_count_among_those_that_a_group_needs():
    whole = await rollout(FakeJournal({}))
    journal = FakeJournal({whole[0].episode_id: whole[0]})
    members = await rollout(journal, redundancy=2)
    assert members[0] is whole[0] and members[0].is_valid
    assert sum(t.is_valid for t in members) == 3


class AsksThrice(Workflow):
    """`says` is what comes between the calls."""

    says = "Sure?"

    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        for _ in range(3):
            messages.append(await model_tuner.chat(messages))
            messages.append({"role": "user", "content": self.says})
        return WorkflowOutput(reward=1.0)


async def asked_thrice(journal, says="Sure?"):
    """The turns of one episode, and the ids of the requests that the model got."""
    tokenizer, asked = chat_tokenizer("qwen2_5"), []

    def answer(prompt, request_id):
        asked.append(request_id)
        return f"reply {len(asked)}"

    workflow = type("Asker", (AsksThrice,), {"says": says})
    runner = episode_runner(workflow, ScriptedEndpoint(tokenizer, answer), tokenizer)
    request = RolloutRequest([TASK], step=2, mode="train", num_repeat=1)
    [group] = await runner.with_journal(journal).rollout(request)
    [trajectory] = group.trajectories
    assert trajectory.reward == 1.0
    return [turn.completion for turn in trajectory.turns], [name[-4:] for name in asked]


async def test_an_unfinished_episode_continues_after_its_answered_calls():
    first = FakeJournal({})
    whole, asked = await asked_thrice(first)
    assert asked == ["0000", "0001", "0002"]
    [(name, calls)] = first.calls.items()
    assert [call.completion.prompt_ids for call in calls] == [(), (), ()]
    again = FakeJournal({}, {name: calls[:2]})
    completions, asked = await asked_thrice(again)
    assert asked == ["0002"] and completions[:2] == whole[:2]
    assert [call.request for call in again.calls[name]] == [calls[2].request]


class AsksTwoAtOnce(Workflow):
    async def execute(self, workflow_task, model_tuner):
        async def asks(name):
            messages = [{"role": "user", "content": name}]
            for _ in range(3):
                messages.append(await model_tuner.chat(messages))
                messages.append({"role": "user", "content": "And?"})

        await asyncio.gather(asks("one"), asks("other"))
        return WorkflowOutput(reward=1.0)


async def test_concurrent_calls_are_found_again():
    async def calls_of(journal):
        tokenizer, asked = chat_tokenizer("qwen2_5"), []
        endpoint = ScriptedEndpoint(tokenizer, lambda _, name: asked.append(name) or "so")
        request = RolloutRequest([TASK], step=2, mode="train", num_repeat=1)
        runner = episode_runner(AsksTwoAtOnce, endpoint, tokenizer).with_journal(journal)
        await runner.rollout(request)
        return len(asked)

    first = FakeJournal({})
    assert await calls_of(first) == 6
    assert await calls_of(FakeJournal({}, first.calls)) == 0


async def test_what_the_agent_asks_otherwise_is_sampled_anew():
    first = FakeJournal({})
    whole, _ = await asked_thrice(first)
    completions, asked = await asked_thrice(FakeJournal({}, first.calls), says="Really?")
    assert asked == ["0001", "0002"] and completions[0] == whole[0]


@pytest.mark.parametrize(
    "other",
    [
        ([1, 3], SamplingParams(seed=4), "e/0000"),
        ([1, 2], SamplingParams(seed=5), "e/0000"),
        ([1, 2], SamplingParams(seed=4, max_tokens=9), "e/0000"),
        ([1, 2], SamplingParams(seed=4), "e/0001"),
    ],
)
def test_a_request_is_known_by_all_that_it_asks(other):
    known = hash_of_request([1, 2], SamplingParams(seed=4), "e/0000")
    assert known == hash_of_request((1, 2), SamplingParams(seed=4), "e/0000")
    assert hash_of_request(*other) != known


def test_plans_are_the_same_wherever_they_are_made():
    request = RolloutRequest([TASK], step=2, mode="train", num_repeat=2, numbers=[4])
    one, other = (request.plans(run_seed=7) for _ in range(2))
    assert one == other
    assert [plan.episode_id for plan in one] == ["000002-train-0004-00", "000002-train-0004-01"]
    assert one[0].seed == one[1].seed
