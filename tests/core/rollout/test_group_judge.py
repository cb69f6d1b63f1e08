"""A judge that sees a whole group is asked once, when every member is in."""

import asyncio

import pytest

from ajet import GroupJudge, Task, Workflow, WorkflowOutput
from ajet.core.rollout.admission import Slot
from ajet.core.rollout.episode import GROUP_JUDGE
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
OK, FAULT = EpisodeStatus.OK, EpisodeStatus.JUDGE_ERROR


class Numbered(Workflow):
    """Its answer is its place; later members end first."""

    async def execute(self, workflow_task, model_tuner):
        await asyncio.sleep(0.01 * (3 - workflow_task.rollout_index))
        return WorkflowOutput(metadata={"final_answer": workflow_task.rollout_index})


class Ranks(GroupJudge):
    """Rewards a place by its answer, and keeps what it was shown."""

    def __init__(self):
        super().__init__()
        self.seen = []

    async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        answers = [output.metadata["final_answer"] for output in workflow_outputs]
        places = [task.rollout_index for task in workflow_tasks]
        self.seen.append((workflow_tasks[0].task_id, places, answers))
        return [(answer / 10, answer > 0) for answer in answers]


def judge_that(act):
    async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        return act(workflow_outputs)

    return type("MyJudge", (GroupJudge,), {"compute_group_rewards": compute_group_rewards})()


def runner_of(judge, workflow=Numbered, **options):
    scripted = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: "ok")
    return episode_runner(workflow, scripted, TOKENIZER, judge, max_failure_rate=1.0, **options)


async def groups_of(judge, workflow=Numbered, num_tasks=1, num_repeat=3, mode="train", **options):
    tasks = [Task(f"t{n}", "q") for n in range(num_tasks)]
    runner = runner_of(judge, workflow, **options)
    rollout = runner.rollout(RolloutRequest(tasks, step=0, mode=mode, num_repeat=num_repeat))
    return await asyncio.wait_for(rollout, 20)  # a member that nobody counts is waited for ever


@pytest.mark.parametrize("mode", ["train", "eval"])
async def test_each_group_is_asked_once_in_the_order_of_its_members(mode):
    judge = Ranks()
    groups = await groups_of(judge, num_tasks=2, mode=mode)
    assert sorted(judge.seen) == [("t0", [0, 1, 2], [0, 1, 2]), ("t1", [0, 1, 2], [0, 1, 2])]
    for group in groups:
        assert [t.reward for t in group.trajectories] == [0.0, 0.1, 0.2]
        assert [t.is_success for t in group.trajectories] == [False, True, True]
        assert [t.reward_breakdown for t in group.trajectories][2] == {"judge": 0.2}


async def test_when_a_member_asked_its_judge_is_noted_in_the_clock_of_its_attempt():
    """On Ray the driver judges, and a worker notes when: its own judge answers at once."""
    runner = runner_of(None).executor
    plan = RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=1).plans(0)[0]

    async def at_once(trajectory):
        return trajectory

    [asked] = (await runner.run(plan, Slot(plan.episode_id), judge_in_group=at_once)).calls
    assert asked.name == GROUP_JUDGE and asked.started_s >= 0.03


@pytest.mark.parametrize("max_env_worker", [1, 2])
async def test_members_that_wait_for_the_judge_hold_no_place(max_env_worker):
    judge = Ranks()
    await groups_of(judge, num_tasks=2, max_env_worker=max_env_worker)
    assert len(judge.seen) == 2


async def test_members_that_failed_or_were_rewarded_already_are_left_out():
    class Mixed(Numbered):
        async def execute(self, workflow_task, model_tuner):
            if workflow_task.rollout_index == 0:
                await asyncio.sleep(0.1)  # the last one in is not judged
                raise ValueError("no such move")
            output = await super().execute(workflow_task, model_tuner)
            output.reward = 5.0 if workflow_task.rollout_index == 1 else None
            return output

    judge = Ranks()
    [group] = await groups_of(judge, Mixed, num_repeat=4)
    assert judge.seen == [("t0", [2, 3], [2, 3])]
    assert [t.reward for t in group.trajectories] == [None, 5.0, 0.2, 0.3]
    assert [t.status for t in group.trajectories] == [EpisodeStatus.AGENT_ERROR, OK, OK, OK]
    assert group.trajectories[1].reward_breakdown == {"workflow": 5.0}


async def test_nobody_is_asked_about_a_group_without_members_to_judge():
    class Fails(Workflow):
        async def execute(self, workflow_task, model_tuner):
            raise ValueError("no such move")

    judge = Ranks()
    await groups_of(judge, Fails)
    assert judge.seen == []


async def test_a_retried_member_is_judged_in_its_place():
    tried = []

    class Second(Numbered):
        async def execute(self, workflow_task, model_tuner):
            tried.append(workflow_task.rollout_index)
            if workflow_task.rollout_index == 1 and tried.count(1) == 1:
                raise ValueError("no such move")
            return await super().execute(workflow_task, model_tuner)

    judge = Ranks()
    [group] = await groups_of(judge, Second, failure_policy="retry")
    assert judge.seen == [("t0", [0, 1, 2], [0, 1, 2])]
    assert group.trajectories[1].episode_id.endswith("-r1")


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda outputs: [(1.0, True)], "returned a list of 1: return a list of 3, one"),
        (lambda outputs: None, "returned None: return a list of 3"),
        (lambda outputs: [(1.0, True), (1.0, True), ""], "returned the str '': return a reward or"),
        (lambda outputs: [(float("nan"), True)] * 3, "the reward is nan"),
        (lambda outputs: 1 / 0, "raised ZeroDivisionError: division by zero"),
    ],
)
async def test_a_judge_that_gives_no_usable_verdict_fails_its_group_alone(act, error):
    groups = await groups_of(judge_that(act), num_tasks=1)
    for t in groups[0].trajectories:
        assert (t.status, t.reward) == (FAULT, None)
        assert t.error is not None and t.error.startswith("judge 'MyJudge'") and error in t.error


async def test_the_deadline_of_a_group_begins_when_its_last_member_is_in():
    class Waits(GroupJudge):
        async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
            await asyncio.sleep(60)

    class RanksSlowly(Ranks):
        async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
            await asyncio.sleep(1.2)
            return await super().compute_group_rewards(workflow_tasks, workflow_outputs)

    class OneIsLate(Numbered):
        async def execute(self, workflow_task, model_tuner):
            await asyncio.sleep(0 if workflow_task.rollout_index else 1.2)
            return WorkflowOutput(metadata={"final_answer": 1})

    [group] = await groups_of(Waits(), episode_timeout_s=2)
    assert {t.error for t in group.trajectories} == {"judge 'Waits' gave no verdict within 2 s"}
    [group] = await groups_of(RanksSlowly(), OneIsLate, episode_timeout_s=2)
    assert [t.status for t in group.trajectories] == [OK, OK, OK]


async def test_a_rollout_that_is_stopped_stops_the_judge():
    asked, stopped = asyncio.Event(), asyncio.Event()
    seen = []

    class Waits(GroupJudge):
        async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
            seen.append(len(workflow_outputs))
            asked.set()
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                stopped.set()
                raise

    runner = runner_of(Waits())
    rollout = asyncio.ensure_future(
        runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=3))
    )
    await asyncio.wait_for(asked.wait(), 60)
    runner.stop()
    [group] = await asyncio.wait_for(rollout, 60)
    await asyncio.wait_for(stopped.wait(), 60)
    assert [t.status for t in group.trajectories] == [EpisodeStatus.ABORTED] * 3
    assert seen == [3]


async def test_a_member_alone_is_a_group_and_a_plain_method_will_do():
    class Plain(GroupJudge):
        def compute_group_rewards(self, workflow_tasks, workflow_outputs):
            workflow_outputs[0].log_metrics["seen"] = len(workflow_outputs)
            return ((0.5, None),)

    [group] = await groups_of(Plain(), num_repeat=1, debug=True)
    assert group.trajectories[0].reward == 0.5
    assert group.trajectories[0].output.log_metrics == {"seen": 1.0}


async def test_in_debugging_the_judges_own_exception_comes_through():
    with pytest.raises(ZeroDivisionError):
        await groups_of(judge_that(lambda outputs: 1 / 0), debug=True)
