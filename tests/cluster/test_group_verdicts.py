"""Members that wait for the judge of their group are named, though no worker knows of them.

No Ray runs here: `Actor` stands for a worker's process and ends each episode at once.
"""

import asyncio
import time
from dataclasses import replace

import cloudpickle
import pytest

from ajet import GroupJudge, Task, WorkflowOutput
from ajet.cluster.rollout_workers import RolloutWorkers
from ajet.core.config import load_config
from ajet.core.rollout.admission import Admission
from ajet.core.rollout.episode import GROUP_JUDGE
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus, Trajectory
from ajet.core.user_code.activity import TimedCall

WAITED_S = 0.05


class Actor:
    """Its `begin` ends the episode without a reward."""

    def __init__(self, worker):
        self.worker, self.begin = worker, self

    def remote(self, episode_id, packed_plan, stops, answered):
        running = self.worker.running[episode_id]
        plan = cloudpickle.loads(packed_plan)
        ended = Trajectory(plan, (), EpisodeStatus.OK, output=WorkflowOutput())
        calls = (TimedCall("tool dice", 1.0, 2.0), TimedCall(GROUP_JUDGE, 5.0, 5.001))
        ended = replace(ended, began_unix_s=time.time() + 3600, calls=calls)  # its clock is ahead
        running.slot.workflow_ended(ended.status)
        running.trajectory.set_result(ended)


class Waits(GroupJudge):
    """Judges when the test lets it."""

    def __init__(self):
        super().__init__()
        self.asked, self.may_judge = asyncio.Event(), asyncio.Event()

    async def compute_group_rewards(self, workflow_tasks, workflow_outputs):
        self.asked.set()
        await self.may_judge.wait()
        return [(1.0, True) for _ in workflow_outputs]


@pytest.fixture
def workers(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}")
    workers = RolloutWorkers(load_config(path, backbone="verl"), [{}])
    (worker,) = workers.slots
    worker.actor = Actor(worker)
    return workers


async def test_who_waits_for_the_judge_of_its_group_is_named_until_it_has_judged(workers):
    workers.slots[0].started = asyncio.create_task(asyncio.sleep(0, result=4711))
    judge = Waits()
    limits = RolloutLimits.from_config(workers._config)
    runner = GroupRunner(workers, Admission(4), limits=limits, run_seed=0, judge=judge)
    request = RolloutRequest([Task("t0", "q")], step=3, mode="train", num_repeat=2)
    running = asyncio.create_task(runner.rollout(request))
    await asyncio.wait_for(judge.asked.wait(), 60)
    calls = workers.calls()
    assert sorted(calls) == ["000003-train-0000-00", "000003-train-0000-01"]
    assert {(call.name, call.is_model) for call in calls.values()} == {
        ("the judge of its group", False)
    }
    await asyncio.sleep(WAITED_S)
    judge.may_judge.set()
    (group,) = await running
    assert [each.reward for each in group.trajectories] == [1.0, 1.0] and not workers.calls()
    for each in group.trajectories:
        tool, judge = each.calls
        assert (tool.name, judge.name) == ("tool dice", "the judge of its group")
        assert judge.started_s == 5.0 and 5.0 + WAITED_S <= judge.ended_s < 65.0
