"""Whatever a workflow or a judge does, its episode ends as a value; order never depends on time."""

import asyncio
import sys

import pytest

from ajet import BaseJudge, Task, Workflow, WorkflowOutput
from ajet.core.errors import ConfigError, EnvironmentFault, RunFailed
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.limits import EpisodeClosed
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
TASKS = [Task(f"t{i}", f"question {i}", metadata={"answer": str(i)}) for i in range(3)]


class Fixed(BaseJudge):
    verdict = (1.0, True)

    def compute_reward(self, workflow_task, workflow_output):
        return self.verdict


class OneCall(Workflow):
    async def execute(self, workflow_task, tuner):
        question = {"role": "user", "content": workflow_task.task.main_query}
        reply = await tuner.chat([question])
        return WorkflowOutput(metadata={"final_answer": reply["content"]})


def endpoint(reply=lambda prompt, request_id: "ok"):
    return ScriptedEndpoint(TOKENIZER, reply)


async def one(execute, judge=None, tasks=TASKS[:1], num_repeat=1, max_failure_rate=1.0, **limits):
    """The first trajectory of a workflow with this `execute`."""
    workflow = type("W", (Workflow,), {"execute": execute})
    runner = episode_runner(
        workflow,
        endpoint(),
        TOKENIZER,
        judge or Fixed(),
        max_failure_rate=max_failure_rate,
        **limits,
    )
    groups = await runner.rollout(
        RolloutRequest(tasks, step=0, mode="train", num_repeat=num_repeat)
    )
    return groups[0].trajectories[0]


async def test_groups_and_members_come_in_the_order_of_the_tasks_whichever_ends_first():
    class Slow(OneCall):
        async def execute(self, workflow_task, tuner):
            await asyncio.sleep(0.02 * (2 - workflow_task.task_batch_index))
            return await super().execute(workflow_task, tuner)

    ended = []
    runner = episode_runner(Slow, endpoint(), TOKENIZER, Fixed())
    groups = await runner.rollout(
        RolloutRequest(TASKS, step=3, mode="train", num_repeat=2),
        on_episode=lambda t: ended.append(t.episode_id),
    )
    ids = [t.episode_id for g in groups for t in g.trajectories]
    assert ids == [f"000003-train-{g:04d}-{m:02d}" for g in range(3) for m in range(2)]
    assert ids == sorted(ids)
    assert ended != ids
    assert sorted(ended) == ids
    assert [g.trajectories[0].workflow_task.task.task_id for g in groups] == ["t0", "t1", "t2"]
    assert (
        groups[0].trajectories[0].workflow_task.seed == groups[0].trajectories[1].workflow_task.seed
    )
    assert (
        groups[0].trajectories[0].workflow_task.seed != groups[1].trajectories[0].workflow_task.seed
    )


async def test_the_next_episode_enters_before_the_one_that_made_room_leaves():
    scripted = endpoint()
    runner = episode_runner(OneCall, scripted, TOKENIZER, Fixed(), max_env_worker=2)
    await runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=1))
    first, second, third = (f"000000-train-{group:04d}-00" for group in range(3))
    assert scripted.events[:2] == [("enter", first), ("enter", second)]
    leaves = [event for event in scripted.events if event[0] == "leave"]
    assert sorted(leaves) == [("leave", first), ("leave", second), ("leave", third)]
    assert scripted.events.index(("enter", third)) < scripted.events.index(leaves[0])
    assert scripted.events.index(("enter", third)) < scripted.events.index(
        ("generate", f"{third}/0000")
    )


async def test_each_episode_has_its_own_copy_of_the_task():
    class Appends(Workflow):
        async def execute(self, workflow_task, model_tuner):
            messages = workflow_task.task.init_messages
            messages.append({"role": "user", "content": "hi"})
            await model_tuner.chat(messages)
            return WorkflowOutput(reward=1.0)

    runner = episode_runner(Appends, ScriptedEndpoint(TOKENIZER, lambda *_: "yes"), TOKENIZER)
    [group] = await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=3))
    assert [len(t.turns[0].messages) for t in group.trajectories] == [1, 1, 1]


async def test_every_call_has_its_own_seed_and_an_evaluation_repeats_its_seeds_at_any_step():
    async def seeds(mode, step):
        scripted = endpoint()
        runner = episode_runner(OneCall, scripted, TOKENIZER, Fixed())
        await runner.rollout(RolloutRequest(TASKS, step=step, mode=mode, num_repeat=2))
        return [scripted.sampling[name].seed for name in sorted(scripted.sampling)]

    assert len(set(await seeds("train", 0))) == 6
    assert await seeds("train", 0) == await seeds("train", 0)
    assert await seeds("train", 0) != await seeds("train", 1)
    assert await seeds("eval", 0) == await seeds("eval", 5)


@pytest.mark.parametrize(("decoding", "temperature"), [("greedy", 0.0), ("sampled", 1.0)])
async def test_a_decoding_replaces_the_modes_own_sampling(decoding, temperature):
    scripted = endpoint()
    runner = episode_runner(OneCall, scripted, TOKENIZER, Fixed())
    request = RolloutRequest(TASKS[:1], step=5, mode="eval", num_repeat=1, decoding=decoding)
    [group] = await runner.rollout(request)
    assert group.group_id == f"000005-eval-{decoding}-0000"
    assert group.trajectories[0].workflow_task.task_batch_index == 0
    assert [each.temperature for each in scripted.sampling.values()] == [temperature]


async def test_a_workflow_that_raises_is_an_agent_error_that_names_the_line():
    async def execute(self, workflow_task, tuner):
        await tuner.chat([{"role": "user", "content": "hi"}])
        raise ValueError("bad move\nsecond line")

    t = await one(execute)
    assert t.status is EpisodeStatus.AGENT_ERROR
    assert t.reward is None
    assert not t.is_valid
    assert len(t.turns) == 1
    assert t.error is not None
    assert t.error.startswith("ValueError: bad move (test_runner.py:")


async def test_failures_of_environments_and_connections_are_environment_errors():
    async def broken(self, workflow_task, tuner):
        raise EnvironmentFault("the simulator died")

    async def refused(self, workflow_task, tuner):
        raise ConnectionRefusedError("port 8080")

    assert (await one(broken)).status is EpisodeStatus.ENV_ERROR
    assert (await one(refused)).status is EpisodeStatus.ENV_ERROR


async def test_a_broken_endpoint_is_not_the_agents_fault():
    def reply(prompt, request_id):
        raise RuntimeError("engine out of memory")

    runner = episode_runner(OneCall, endpoint(reply), TOKENIZER, Fixed(), max_failure_rate=1.0)
    [group] = await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=1))
    [t] = group.trajectories
    assert t.status is EpisodeStatus.ENV_ERROR
    assert t.error == "the endpoint failed: RuntimeError: engine out of memory"


async def test_sys_exit_in_a_workflow_ends_its_episode_only():
    async def execute(self, workflow_task, tuner):
        sys.exit(3)

    t = await one(execute)
    assert t.status is EpisodeStatus.AGENT_ERROR
    assert t.error is not None
    assert "sys.exit(3)" in t.error


async def test_a_workflow_past_its_deadline_times_out_and_keeps_its_turns():
    async def execute(self, workflow_task, tuner):
        await tuner.chat([{"role": "user", "content": "hi"}])
        await asyncio.sleep(60)

    t = await one(execute, episode_timeout_s=0.05)
    assert t.status is EpisodeStatus.TIMEOUT
    assert len(t.turns) == 1
    assert t.error == "not finished within 0.05 s (ajet.rollout.episode_timeout_s)"


async def test_a_workflow_that_ignores_cancellation_does_not_hold_up_the_rollout():
    late = []

    async def execute(self, workflow_task, tuner):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
        try:
            await tuner.chat([{"role": "user", "content": "still here"}])
        except EpisodeClosed:
            late.append(workflow_task.episode_id)
        return WorkflowOutput(reward=1.0)

    t = await asyncio.wait_for(one(execute, episode_timeout_s=0.02, cancel_grace_s=0.02), 0.2)
    assert t.status is EpisodeStatus.TIMEOUT
    assert t.turns == ()
    await asyncio.sleep(0.35)
    assert late == ["000000-train-0000-00"]


async def test_a_workflow_that_swallows_its_cancellation_is_still_a_timeout():
    async def execute(self, workflow_task, tuner):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return WorkflowOutput(reward=1.0)

    assert (await one(execute, episode_timeout_s=0.02)).status is EpisodeStatus.TIMEOUT


async def test_retry_runs_a_failed_episode_again_with_other_seeds():
    tries = []

    class Flaky(OneCall):
        async def execute(self, workflow_task, tuner):
            tries.append(workflow_task.episode_id)
            output = await super().execute(workflow_task, tuner)
            if len(tries) < 3:
                raise ConnectionError("flaky")
            return output

    scripted = endpoint()
    runner = episode_runner(
        Flaky, scripted, TOKENIZER, Fixed(), failure_policy="retry", max_retries=2
    )
    [group] = await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=1))
    [t] = group.trajectories
    assert tries == ["000000-train-0000-00", "000000-train-0000-00-r1", "000000-train-0000-00-r2"]
    assert (t.status, len(t.earlier_attempts), t.reward) == (EpisodeStatus.OK, 2, 1.0)
    assert len({s.seed for s in scripted.sampling.values()}) == 3
    assert [what for what, _ in scripted.events if what != "generate"] == [
        *("enter", "enter", "leave", "enter", "leave", "leave")
    ]


class FailsOnce(OneCall):
    """Member 1 of each group raises."""

    async def execute(self, workflow_task, tuner):
        output = await super().execute(workflow_task, tuner)
        if workflow_task.rollout_index == 1:
            raise ValueError("unlucky")
        return output


@pytest.mark.parametrize(
    ("policy", "statuses", "valid"),
    [
        ("mask", ["ok", "agent_error", "ok"], 2),
        ("zero", ["ok", "truncated", "ok"], 3),
        ("drop_group", ["aborted", "agent_error", "aborted"], 0),
    ],
)
async def test_the_failure_policy_says_what_becomes_of_the_group(policy, statuses, valid):
    runner = episode_runner(FailsOnce, endpoint(), TOKENIZER, Fixed(), failure_policy=policy)
    [group] = await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=3))
    assert [t.status for t in group.trajectories] == statuses
    assert len(group.valid) == valid
    if policy == "zero":
        zero = group.trajectories[1]
        assert (zero.reward, zero.outcome) == (0.0, EpisodeStatus.AGENT_ERROR)


async def test_too_many_failures_end_the_run_and_say_which():
    runner = episode_runner(FailsOnce, endpoint(), TOKENIZER, Fixed(), max_failure_rate=0.25)
    with pytest.raises(RunFailed, match=r"of 6 episodes failed \(2 agent_error\), more than") as e:
        await runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=2))
    assert "first: ValueError: unlucky (test_runner.py:" in str(e.value)
    assert "\n" not in str(e.value)


async def test_debug_lets_the_workflows_own_exception_through():
    runner = episode_runner(FailsOnce, endpoint(), TOKENIZER, Fixed(), debug=True)
    with pytest.raises(ValueError, match="unlucky") as e:
        await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=2))
    assert e.traceback[-1].path.name == "test_runner.py"


async def test_stop_gives_aborted_episodes_and_cancelling_reports_them_too():
    class Forever(OneCall):
        async def execute(self, workflow_task, tuner):
            output = await super().execute(workflow_task, tuner)
            if workflow_task.task_batch_index:
                await asyncio.sleep(60)
            return output

    runner = episode_runner(Forever, endpoint(), TOKENIZER, Fixed(), max_env_worker=2)
    rollout = asyncio.ensure_future(
        runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=1))
    )
    await asyncio.sleep(0.05)
    runner.stop()
    groups = await rollout
    assert [g.trajectories[0].status for g in groups] == ["ok", "aborted", "aborted"]

    reported = []
    rollout = asyncio.ensure_future(
        runner.rollout(
            RolloutRequest(TASKS, step=0, mode="train", num_repeat=1), on_episode=reported.append
        )
    )
    await asyncio.sleep(0.05)
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert sorted(t.status for t in reported) == ["aborted", "aborted", "ok"]


async def test_targets_that_match_no_agent_end_the_run_and_name_the_agents():
    class Misspelt(OneCall):
        trainable_targets = ["slover"]

        async def execute(self, workflow_task, tuner):
            await tuner.chat([{"role": "user", "content": "hi"}], agent_name="solver")
            return WorkflowOutput(reward=1.0)

    runner = episode_runner(Misspelt, endpoint(), TOKENIZER)
    with pytest.raises(ConfigError, match=r"match none of its agents: .* are default, solver"):
        await runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=1))
    groups = await runner.rollout(RolloutRequest(TASKS, step=0, mode="eval", num_repeat=1))
    assert all(group.valid for group in groups)


async def test_a_task_without_a_workflow_ends_the_run_and_a_broken_constructor_its_episode():
    class Broken(OneCall):
        def __init__(self):
            raise ValueError("no such file")

    def no_workflow():
        raise ConfigError("no workflow is registered as 'x'")

    runner = episode_runner(no_workflow, endpoint(), TOKENIZER)
    with pytest.raises(ConfigError, match="registered as 'x'"):
        await runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=1))
    runner = episode_runner(Broken, endpoint(), TOKENIZER, max_failure_rate=1.0)
    [group, *_] = await runner.rollout(RolloutRequest(TASKS, step=0, mode="train", num_repeat=1))
    assert group.trajectories[0].status is EpisodeStatus.AGENT_ERROR


async def test_the_workflows_own_reward_stands_and_without_judge_none_is_an_error():
    async def rewards(self, workflow_task, tuner):
        return WorkflowOutput(reward=0.25, is_success=False)

    t = await one(rewards)
    assert (t.reward, t.is_success, t.reward_breakdown) == (0.25, False, {"workflow": 0.25})
    runner = episode_runner(OneCall, endpoint(), TOKENIZER, None, max_failure_rate=1.0)
    [group] = await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=1))
    assert group.trajectories[0].status is EpisodeStatus.JUDGE_ERROR


async def test_the_deadline_leaves_out_what_an_episode_waits_for_the_others():
    """The endpoint answers nobody until the one that hangs is gone, as a wave does."""

    class Wave(ScriptedEndpoint):
        @property
        def waves(self):
            return self

        def set_wave_check(self, check):
            pass

        async def generate(self, prompt_ids, sampling, request_id):
            while ("leave", "000000-train-0000-01") not in self.events:
                await asyncio.sleep(0.01)
            return await super().generate(prompt_ids, sampling, request_id)

    class OneHangs(Workflow):
        async def execute(self, workflow_task, model_tuner):
            if workflow_task.rollout_index == 1:
                await asyncio.sleep(60)
            await model_tuner.chat([{"role": "user", "content": "hi"}])
            return WorkflowOutput(reward=1.0)

    runner = episode_runner(
        OneHangs, Wave(TOKENIZER, lambda prompt, request: "yes"), TOKENIZER, episode_timeout_s=0.1
    )
    [group] = await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=4))
    assert [str(t.status) for t in group.trajectories] == ["ok", "timeout", "ok", "ok"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_workflow_releases_what_the_judge_sees_once_there_is_a_verdict_or_none(fails):
    order = []

    class Holds(OneCall):
        async def execute(self, workflow_task, tuner):
            if fails:
                raise RuntimeError("no")
            return await super().execute(workflow_task, tuner)

        async def after_verdict(self):
            order.append("released")

    class Looks(Fixed):
        def compute_reward(self, workflow_task, workflow_output):
            order.append("judged")
            return 1.0

    runner = episode_runner(Holds, endpoint(), TOKENIZER, Looks(), max_failure_rate=1.0)
    await runner.rollout(RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=1))
    assert order == (["released"] if fails else ["judged", "released"])


@pytest.mark.parametrize("error", [ValueError("the folder is gone"), SystemExit(3)])
async def test_what_fails_after_the_verdict_is_logged_and_the_episode_stays_as_judged(
    error, warnings
):
    class Fails(OneCall):
        async def after_verdict(self):
            raise error

    runner = episode_runner(Fails, endpoint(), TOKENIZER, Fixed())
    request = RolloutRequest(TASKS[:1], step=0, mode="train", num_repeat=1)
    (group,) = await runner.rollout(request)
    assert [(str(t.status), t.reward is None) for t in group.trajectories] == [("ok", False)]
    (line,) = warnings
    assert line.startswith("000000-train-0000-00: after_verdict failed: ")
