"""A step's groups: rounds until enough have signal, the largest variances, greedy baselines."""

from dataclasses import replace

import pytest

from ajet import Task, Workflow, WorkflowOutput
from ajet.core.errors import RunFailed
from ajet.core.rollout.batch import BatchRollout, BatchSettings, top_by_variance
from ajet.core.task.cursor import DataCursor
from ajet.core.task.result_cursor import ResultCursor
from ajet.core.trajectory.limits import MalformedPolicy
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = [Task(f"t{i}", f"question {i}") for i in range(16)]


class TellsOnEvenTasks(Workflow):
    """Members of an even task earn 0, 1, 2, 3; those of an odd one 1 each."""

    async def execute(self, workflow_task, model_tuner):
        number = int(workflow_task.task.task_id[1:])
        await model_tuner.chat([{"role": "user", "content": workflow_task.task.main_query}])
        return WorkflowOutput(reward=1.0 if number % 2 else float(workflow_task.rollout_index))


def batch(workflow=TellsOnEvenTasks, endpoint=None, tasks=TASKS, limits=None, **settings):
    settings = {"train_batch_size": 4, "num_repeat": 2, **settings}
    endpoint = endpoint or ScriptedEndpoint(TOKENIZER, lambda *_: "yes")
    runner = episode_runner(workflow, endpoint, TOKENIZER, **(limits or {}))
    cursor = DataCursor(len(tasks), settings["train_batch_size"], seed=0, shuffle=False)
    return BatchRollout(runner, tasks, cursor, BatchSettings(**settings)), cursor


def tasks_of(groups):
    return [group.task.task_id for group in groups]


async def test_without_selection_a_step_takes_as_many_tasks_as_the_batch_has():
    rollout, cursor = batch()
    found = await rollout.rollout_step(1)
    assert tasks_of(found.groups) == ["t0", "t1", "t2", "t3"]
    assert (cursor.state_dict()["taken"], found.baselines) == (4, [])
    assert all(len(group.valid) == 2 for group in found.groups)


async def test_groups_without_signal_are_set_aside_and_others_rolled_out():
    rollout, cursor = batch(max_rounds=4)
    found = await rollout.rollout_step(1)
    # rounds of 4, 2, 1 and 1 tasks: t0 t1 t2 t3 | t4 t5 | t6
    assert tasks_of(found.groups) == [f"t{i}" for i in range(7)]
    assert tasks_of(group for group in found.groups if group.valid) == ["t0", "t2", "t4", "t6"]
    assert cursor.state_dict()["taken"] == 7
    aside = found.groups[1].trajectories[0]
    assert (aside.status, aside.outcome, aside.reward) == ("aborted", "ok", 1.0)
    assert aside.left_out == "dynamic_sampling"
    assert aside.error == "all rewards of its group are 1 (dynamic_sampling)"


async def test_groups_of_later_rounds_have_numbers_and_seeds_of_their_own():
    rollout, _ = batch(max_rounds=4)
    found = await rollout.rollout_step(5)
    assert [g.group_id for g in found.groups] == [f"000005-train-{n:04d}" for n in range(7)]
    assert len({group.trajectories[0].workflow_task.seed for group in found.groups}) == 7
    again, _ = batch(max_rounds=4)
    same = await again.rollout_step(5)
    for one, two in zip(found.groups, same.groups, strict=True):
        assert one.trajectories[0].workflow_task.seed == two.trajectories[0].workflow_task.seed


async def test_after_the_last_round_the_batch_stays_smaller():
    rollout, cursor = batch(max_rounds=2, tasks=TASKS[1:2])  # a task that says nothing, for ever
    found = await rollout.rollout_step(1)
    assert len(found.groups) == 8
    assert not any(group.valid for group in found.groups)
    assert cursor.state_dict()["taken"] == 8


class InOrder:
    """Chooses tasks that were taken least, and keeps what it was shown."""

    def __init__(self):
        self.shown = []

    def choose(self, log, size):
        self.shown.append(list(log.of_task))
        return sorted(range(len(log.of_task)), key=lambda task: log.of_task[task].taken)[:size]


async def test_the_cursor_is_told_how_each_round_ended_before_it_chooses_the_next():
    rollout, _ = batch(max_rounds=2)
    rollout._cursor = ResultCursor(16, 4, seed=0, sampler=(sampler := InOrder()))
    await rollout.rollout_step(1)
    await rollout.rollout_step(2)
    # t0 to t3, of which t1 and t3 had no signal; then t4, t5 in their place; then the next step
    _, second, third = sampler.shown[:3]
    told = [(each.groups, each.blank, each.episodes, each.wins) for each in second[:5]]
    # members earn 0 and 1, and 1 each; a success is a reward of at least 1/2
    assert told == [(1, 0, 2, 1), (1, 1, 2, 2), (1, 0, 2, 1), (1, 1, 2, 2), (0, 0, 0, 0)]
    assert [each.groups for each in third[:7]] == [1] * 6 + [0]
    assert not any(each.is_waiting for each in third)


async def test_oversampling_keeps_the_groups_whose_rewards_vary_most():
    rollout, cursor = batch(train_batch_size=2, num_repeat=3, oversampling=2.4)
    found = await rollout.rollout_step(1)
    assert tasks_of(found.groups) == ["t0", "t1", "t2", "t3", "t4"]
    assert tasks_of(group for group in found.groups if group.valid) == ["t0", "t2"]
    assert found.groups[4].trajectories[0].left_out == "oversampling"
    assert cursor.state_dict()["taken"] == 5
    assert top_by_variance(found.groups, 2) == found.groups  # what is set aside stays so


async def test_a_step_of_groups_that_nobody_rewarded_is_kept_whole():
    class SaysNothing(Workflow):
        async def execute(self, workflow_task, model_tuner):
            return WorkflowOutput()

    rollout, _ = batch(SaysNothing, num_repeat=2, limits={"needs_reward": False})
    found = await rollout.rollout_step(1)
    assert all(len(group.valid) == 2 and not group.has_signal for group in found.groups)


async def test_an_episode_that_a_limit_cut_leaves_the_baseline_of_its_group_too():
    class FirstTalksOn(TellsOnEvenTasks):
        async def execute(self, workflow_task, model_tuner):
            output = await super().execute(workflow_task, model_tuner)
            if workflow_task.rollout_index == 0:
                await model_tuner.chat([{"role": "user", "content": "once more"}])
            return output

    rollout, _ = batch(FirstTalksOn, num_repeat=3, limits={"max_steps": 1}, mask_truncated=True)
    found = await rollout.rollout_step(1)
    for group in found.groups:
        assert [t.workflow_task.rollout_index for t in group.valid] == [1, 2]
        assert group.trajectories[0].left_out == "overlong"
        assert group.trajectories[0].outcome == "truncated"


async def test_a_malformed_episode_keeps_its_configured_reward_and_is_not_masked_as_truncated():
    """Malformed replies end an episode early too, and its reward is what teaches the model to write
    others."""
    bad_call = "<tool_call>\n{not json}\n</tool_call>"
    endpoint = ScriptedEndpoint(
        TOKENIZER, lambda _, name: bad_call if name.rpartition("/")[0].endswith("-00") else "yes"
    )
    malformed = MalformedPolicy(("wrong_toolcall",), reward=-0.5)
    rollout, _ = batch(
        endpoint=endpoint, num_repeat=3, limits={"malformed": malformed}, mask_truncated=True
    )
    found = await rollout.rollout_step(1)
    for group in found.groups:
        assert group.trajectories[0].is_malformed
        assert [t.left_out for t in group.trajectories] == [None] * 3
        assert [t.workflow_task.rollout_index for t in group.valid] == [0, 1, 2]
        assert group.trajectories[0].reward == -0.5


async def test_a_greedy_episode_runs_in_the_world_of_each_group_that_is_kept():
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "yes")
    rollout, _ = batch(endpoint=endpoint, num_repeat=2, max_rounds=4, has_baselines=True)
    found = await rollout.rollout_step(5)
    kept = [group for group in found.groups if group.valid]
    assert [b.group_id for b in found.baselines] == [
        f"000005-baseline-{n:04d}" for n in (0, 2, 4, 6)
    ]
    assert [b.trajectories[0].episode_id for b in found.baselines][1] == "000005-baseline-0002-00"
    for group, baseline in zip(kept, found.baselines, strict=True):
        of_group, greedy = group.trajectories[0], baseline.trajectories[0]
        assert of_group.workflow_task.seed == greedy.workflow_task.seed
        assert group.baseline == 0.0  # what member 0 of an even task earns
    temperatures = {
        name.split("-")[1]: sampling.temperature for name, sampling in endpoint.sampling.items()
    }
    assert temperatures == {"train": 1.0, "baseline": 0.0}
    assert [group.baseline for group in found.groups if not group.valid] == [None] * 3


async def test_a_group_whose_greedy_episode_failed_has_no_baseline():
    class GreedyFails(TellsOnEvenTasks):
        async def execute(self, workflow_task, model_tuner):
            if workflow_task.mode == "baseline" and workflow_task.task_batch_index == 2:
                raise ValueError("unlucky")
            return await super().execute(workflow_task, model_tuner)

    rollout, _ = batch(GreedyFails, has_baselines=True)
    found = await rollout.rollout_step(1)
    assert [group.baseline for group in found.groups] == [0.0, 1.0, None, 1.0]
    assert found.baselines[2].trajectories[0].status == "agent_error"


async def test_a_small_later_round_that_fails_does_not_end_the_run_and_a_first_one_does():
    class LaterFails(TellsOnEvenTasks):
        first_bad = 4

        async def execute(self, workflow_task, model_tuner):
            if workflow_task.task_batch_index >= self.first_bad:
                raise ValueError("unlucky")
            return await super().execute(workflow_task, model_tuner)

    rollout, _ = batch(LaterFails, max_rounds=2)
    found = await rollout.rollout_step(1)
    assert [len(group.valid) for group in found.groups] == [2, 0, 2, 0, 0, 0]
    always = type("AlwaysFails", (LaterFails,), {"first_bad": 0})
    rollout, _ = batch(always, max_rounds=2)
    with pytest.raises(RunFailed, match="of 8 episodes failed"):
        await rollout.rollout_step(1)


def test_settings_say_how_many_episodes_begin():
    settings = BatchSettings(train_batch_size=4, num_repeat=2, redundancy=1, oversampling=1.5)
    assert (settings.first_round, settings.group_size, settings.num_episodes) == (6, 3, 18)
    assert replace(settings, oversampling=1.1).first_round == 5
    assert replace(settings, train_batch_size=10, oversampling=1.1).first_round == 11
