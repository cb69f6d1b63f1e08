"""A rollout that was lost goes on: its finished episodes are taken as they are."""

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

    def __init__(self, finished):
        self.finished, self.kept = finished, []

    def take(self, group_id):
        return self.finished

    def put(self, trajectory):
        self.kept.append(trajectory.episode_id)


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
