"""A rollout that was lost goes on: its finished episodes are taken as they are."""

from ajet.core.rollout.plans import plans_of
from ajet.core.task.task import Task
from ajet.core.workflow.workflow import Workflow, WorkflowOutput
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TASK = Task("t", "What is 1 + 1?")


class Asks(Workflow):
    async def execute(self, workflow_task, model_tuner):
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        return WorkflowOutput(reward=float(workflow_task.rollout_index))


def runner():
    tokenizer = chat_tokenizer("qwen2_5")
    return episode_runner(Asks, ScriptedEndpoint(tokenizer, lambda prompt, _: "two"), tokenizer)


async def rollout(told, **options):
    groups = await runner().rollout(
        [TASK], step=2, mode="train", num_repeat=3, on_episode=told.append, **options
    )
    return groups[0].trajectories


async def test_finished_members_are_kept_and_not_told_again():
    whole = await rollout([])
    kept, told = whole[1], []
    again = await rollout(told, finished={kept.episode_id: kept})
    assert again[1] is kept
    assert [t.episode_id for t in told] == [whole[0].episode_id, whole[2].episode_id]
    assert [t.reward for t in again] == [0.0, 1.0, 2.0]


async def test_finished_members_count_among_those_that_a_group_needs():
    whole = await rollout([])
    finished = {whole[0].episode_id: whole[0]}
    members = await rollout([], finished=finished, redundancy=2)
    assert members[0] is whole[0] and members[0].is_valid
    assert sum(t.is_valid for t in members) == 3


def test_plans_are_the_same_wherever_they_are_made():
    one, other = (plans_of([TASK], [4], 7, step=2, mode="train", size=2) for _ in range(2))
    assert one == other
    assert [plan.episode_id for plan in one] == ["000002-train-0004-00", "000002-train-0004-01"]
    assert one[0].seed == one[1].seed
