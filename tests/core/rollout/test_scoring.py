"""What a workflow and a judge return is made plain, or is one line of their episode's error."""

import asyncio
import sys
from types import MappingProxyType

import numpy as np
import pytest
import torch

from ajet import BaseJudge, Task, Workflow, WorkflowOutput
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
HUGE = 10**400


class Flow(Workflow):
    returned: WorkflowOutput

    async def execute(self, workflow_task, model_tuner):
        return self.returned


def runner_of(output, judge=None, **options):
    flow = type("MyFlow", (Flow,), {"returned": output})
    scripted = ScriptedEndpoint(TOKENIZER, lambda prompt, request_id: "ok")
    return episode_runner(flow, scripted, TOKENIZER, judge, max_failure_rate=1.0, **options)


async def groups_of(output, judge=None, mode="train", **options):
    runner = runner_of(output, judge, **options)
    return await runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode=mode, num_repeat=2))


async def one(output, judge=None, **options):
    [group] = await groups_of(output, judge, **options)
    return group.trajectories[0]


def judge_that(act, name="MyJudge"):
    """`act(workflow_output)` is what it does."""

    def compute_reward(self, workflow_task, workflow_output):
        return act(workflow_output)

    return type(name, (BaseJudge,), {"compute_reward": compute_reward})()


def raises(error):
    def act(workflow_output):
        raise error

    return judge_that(act)


def object_array(content):
    array = np.empty((), dtype=object)
    array[()] = content
    return array


NO_REWARDS = [
    (object_array(None), "None"),
    (np.ma.masked, "None"),
    (np.ma.array(0.5, mask=True), "None"),
    (np.datetime64("NaT"), "a value of type datetime64"),
    (np.timedelta64("NaT"), "a value of type timedelta64"),
    (np.timedelta64(5, "ns"), "a value of type timedelta64"),
    (object_array(np.timedelta64(5)), "a value of type timedelta64"),
    (object_array("1.0"), "the str '1.0'"),
    (np.array(1 + 2j), "a value of type complex"),
    (np.array([1.0]), "a value of type ndarray"),
]
"""Values that a missing cell, or one of another column, may be; with what they are called."""


class NotInitialised(WorkflowOutput):
    def __init__(self):
        """`super().__init__` is not called: there are no fields."""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (None, "MyFlow.execute() returned None: return a WorkflowOutput"),
        (1.0, "MyFlow.execute() returned the float '1.0': return a WorkflowOutput"),
        (
            WorkflowOutput(reward=[1.0, 2.0]),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.reward is a list of 2: give one number or bool, or None to ask "
            "the judge",
        ),
        (WorkflowOutput(reward=HUGE), "MyFlow: WorkflowOutput.reward is too large for a float"),
        (
            WorkflowOutput(reward=1e39),
            "MyFlow: WorkflowOutput.reward is 1e+39: give one of at most 1e+30 in size",
        ),
        (
            WorkflowOutput(reward=np.longdouble("1e4000")),
            "MyFlow: WorkflowOutput.reward is inf: return a finite number",
        ),
        *[
            (
                WorkflowOutput(reward=reward),
                f"MyFlow: WorkflowOutput.reward is {what}: give one number or bool, or None to ask "
                "the judge",
            )
            for reward, what in NO_REWARDS
        ],
        (
            WorkflowOutput(reward=1.0, log_metrics={"ok": 1, "moves": float("nan")}),
            "MyFlow: WorkflowOutput.log_metrics['moves'] is nan: return a finite number",
        ),
        (
            WorkflowOutput(reward=1.0, log_metrics={"moves": HUGE}),
            "MyFlow: WorkflowOutput.log_metrics['moves'] is too large for a float",
        ),
        (
            WorkflowOutput(reward=1.0, log_metrics={"moves": "3"}),  # type: ignore[dict-item]
            "MyFlow: WorkflowOutput.log_metrics['moves'] is the str '3': give a number",
        ),
        (
            WorkflowOutput(reward=1.0, log_metrics={"moves": None}),  # type: ignore[dict-item]
            "MyFlow: WorkflowOutput.log_metrics['moves'] is None: give a number",
        ),
        (
            WorkflowOutput(reward=1.0, log_metrics=[("moves", 1)]),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.log_metrics is a list of 1: give a dict",
        ),
        (
            WorkflowOutput(metadata=MappingProxyType({})),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.metadata is a value of type mappingproxy: give a dict",
        ),
        (
            WorkflowOutput(reward=1.0, is_success="False"),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.is_success is the str 'False': give a bool or None",
        ),
        (
            WorkflowOutput(reward=1.0, is_success=0.3),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.is_success is the float '0.3': give a bool or None",
        ),
        (
            WorkflowOutput(reward=1.0, is_success=np.array([1, 0])),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.is_success is a value of type ndarray: give a bool or None",
        ),
        (
            WorkflowOutput(reward=1.0, is_success=10**5000),  # type: ignore[arg-type]
            "MyFlow: WorkflowOutput.is_success is a value of type int: give a bool or None",
        ),
        (NotInitialised(), "reward"),
    ],
)
async def test_an_odd_output_is_an_agent_error_that_names_the_workflow(output, expected):
    t = await one(output, judge_that(lambda output: (1.0, True)))
    assert t.status is EpisodeStatus.AGENT_ERROR
    assert t.error is not None
    assert t.error == expected if expected != "reward" else "reward" in t.error


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (None, "returned None: return a reward or (reward, is_success)"),
        ("1.0", "returned the str '1.0': return a reward or (reward, is_success)"),
        ((1.0, True, "why"), "returned a tuple of 3"),
        (float("nan"), "the reward is nan: return a finite number"),
        ((float("inf"), True), "the reward is inf"),
        ((HUGE, True), "judge 'MyJudge': the reward is too large for a float"),
        ((-1e39, True), "judge 'MyJudge': the reward is -1e+39: give one of at most 1e+30 in size"),
        ((10**5000, True), "judge 'MyJudge': the reward is too large for a float"),
        ((np.array([1.0, 2.0]), True), "the reward is a value of type ndarray: return a number"),
        *[
            ((reward, True), f"the reward is {what}: return a number")
            for reward, what in NO_REWARDS
        ],
        *[(reward, "judge 'MyJudge'") for reward, _ in NO_REWARDS],
        ((1.0, 2), "is_success is the int '2': return a bool"),
        ((1.0, "False"), "judge 'MyJudge': is_success is the str 'False': return a bool"),
        ((1.0, 0.3), "judge 'MyJudge': is_success is the float '0.3': return a bool"),
        ((1.0, np.array([1, 0])), "is_success is a value of type ndarray: return a bool"),
    ],
)
async def test_an_odd_verdict_is_a_judge_error_that_names_the_judge(verdict, expected):
    t = await one(WorkflowOutput(), judge_that(lambda output: verdict))
    assert t.status is EpisodeStatus.JUDGE_ERROR
    assert t.error is not None
    assert "judge 'MyJudge'" in t.error
    assert expected in t.error
    assert t.reward is None


async def test_numpy_and_none_become_plain_numbers_and_empty_dicts():
    output = WorkflowOutput(
        reward=np.float32(0.5),  # type: ignore[arg-type]
        is_success=np.bool_(True),  # type: ignore[arg-type]
        metadata=None,  # type: ignore[arg-type]
        log_metrics={"moves": np.int64(3)},  # type: ignore[dict-item]
    )
    t = await one(output)
    assert t.output == WorkflowOutput(0.5, True, {}, {"moves": 3.0})
    assert [type(v) for v in (t.reward, t.is_success)] == [float, bool]
    assert [type(v) for v in t.output.log_metrics.values()] == [float]
    t = await one(WorkflowOutput(reward=1, is_success=0, log_metrics=None))  # type: ignore[arg-type]
    assert t.output == WorkflowOutput(1.0, False, {}, {})
    for given, is_success in ((1, True), (0, False), (None, True), (np.bool_(False), False)):
        t = await one(WorkflowOutput(), judge_that(lambda output, given=given: (1, given)))
        assert (t.reward, t.is_success) == (1.0, is_success)


async def test_a_subclass_of_the_output_reaches_the_judge_with_what_it_adds():
    class Transcript(WorkflowOutput):
        def __init__(self, text):
            super().__init__()
            self.text = text

    t = await one(Transcript("four"), judge_that(lambda output: (len(output.text), True)))
    assert t.reward == 4.0


async def test_sys_exit_in_a_judge_ends_its_episode_only():
    t = await one(WorkflowOutput(), judge_that(lambda output: sys.exit(3)))
    assert t.status is EpisodeStatus.JUDGE_ERROR
    assert t.error is not None
    assert t.error.startswith(
        "judge 'MyJudge' raised RuntimeError: it called sys.exit(3) (test_scoring.py:"
    )
    runner = runner_of(WorkflowOutput(), judge_that(lambda output: sys.exit(3)), debug=True)
    with pytest.raises(RuntimeError, match=r"it called sys\.exit\(3\)"):
        await runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=1))


async def test_a_timeout_that_the_judge_raises_is_reported_as_its_own():
    t = await one(WorkflowOutput(), raises(TimeoutError("http 3s")))
    assert t.status is EpisodeStatus.JUDGE_ERROR
    assert t.error is not None
    assert t.error.startswith("judge 'MyJudge' raised TimeoutError: http 3s (test_scoring.py:")
    runner = runner_of(WorkflowOutput(), raises(TimeoutError("http 3s")), debug=True)
    with pytest.raises(TimeoutError, match="http 3s"):
        await runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=1))


async def test_a_judge_past_its_deadline_gave_no_verdict_whatever_it_makes_of_that():
    class Converts(BaseJudge):
        async def compute_reward(self, workflow_task, workflow_output):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError as error:
                raise OSError("connection lost") from error
            return 1.0, True

    t = await one(WorkflowOutput(), Converts(), episode_timeout_s=0.05)
    assert t.error == "judge 'Converts' gave no verdict within 0.05 s"


async def test_a_judge_that_cancels_itself_is_a_judge_error_and_a_stopped_run_aborts():
    t = await one(WorkflowOutput(), raises(asyncio.CancelledError()))
    assert t.status is EpisodeStatus.JUDGE_ERROR
    assert t.error is not None
    assert t.error.startswith("judge 'MyJudge' raised RuntimeError: it cancelled itself")

    class Waits(BaseJudge):
        async def compute_reward(self, workflow_task, workflow_output):
            await asyncio.sleep(60)
            return 1.0, True

    runner = runner_of(WorkflowOutput(), Waits())
    rollout = asyncio.ensure_future(
        runner.rollout(RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=1))
    )
    await asyncio.sleep(0.05)
    runner.stop()
    [group] = await rollout
    assert group.trajectories[0].status is EpisodeStatus.ABORTED


async def test_what_a_judge_adds_to_the_output_is_kept_and_checked():
    def adds(value):
        def act(output):
            output.log_metrics["length"] = value
            output.metadata["why"] = "short"
            return 1.0, True

        return judge_that(act)

    t = await one(WorkflowOutput(), adds(np.float32(2)))
    assert t.output is not None
    assert (t.output.log_metrics, t.output.metadata) == ({"length": 2.0}, {"why": "short"})
    assert t.reward_breakdown == {"judge": 1.0}
    assert set(t.timings) == {"workflow_s", "model_s", "judge_s"}
    t = await one(WorkflowOutput(), adds(float("nan")), failure_policy="zero")
    assert t.outcome is EpisodeStatus.JUDGE_ERROR
    assert t.error is not None
    assert "judge 'MyJudge': WorkflowOutput.log_metrics['length'] is nan" in t.error
    assert t.output is not None
    assert t.output.log_metrics == {}


@pytest.mark.parametrize(
    ("answer", "reward", "is_success"),
    [
        (1.0, 1.0, True),
        (0, 0.0, False),
        (0.5, 0.5, True),  # the threshold, 0.5, is a success
        (0.49, 0.49, False),
        (-1, -1.0, False),
        (True, 1.0, True),
        (False, 0.0, False),
        (np.float32(0.25), 0.25, False),
        (np.bool_(True), 1.0, True),
        (np.array(0.75), 0.75, True),
        (torch.tensor(0.75), 0.75, True),
        (torch.tensor(False), 0.0, False),
        ((torch.tensor(0.25), torch.tensor(True)), 0.25, True),
        ((1.0, None), 1.0, True),
    ],
)
async def test_a_judge_may_return_a_reward_or_a_success_alone(answer, reward, is_success):
    t = await one(WorkflowOutput(), judge_that(lambda output: answer))
    assert (t.reward, t.is_success, t.error) == (reward, is_success, None)


@pytest.mark.parametrize("true", [True, np.bool_(True), np.array(True), torch.tensor(True)])
async def test_a_bool_of_a_workflow_is_what_it_is_of_a_judge(true):
    for given, expected in ((true, (1.0, True)), (true ^ True, (0.0, False))):
        t = await one(WorkflowOutput(reward=given), success_threshold=2.0)
        assert (t.reward, t.is_success, t.error) == (*expected, None)
        assert [type(v) for v in (t.output.reward, t.output.is_success)] == [float, bool]
        judged = await one(WorkflowOutput(), judge_that(lambda output, given=given: given))
        assert (judged.reward, judged.is_success) == expected
    t = await one(WorkflowOutput(reward=true, is_success=False))
    assert (t.reward, t.is_success, t.error) == (1.0, False, None)


async def test_a_bool_in_the_place_of_a_pairs_reward_is_a_slip():
    t = await one(WorkflowOutput(), judge_that(lambda output: (True, 1.0)))
    assert t.error == "judge 'MyJudge': the reward is the bool 'True': return a number"


async def test_a_workflows_reward_without_a_success_succeeds_from_the_threshold_on():
    for reward, is_success in ((1.0, True), (0.5, True), (0.4, False), (torch.tensor(0.5), True)):
        t = await one(WorkflowOutput(reward=reward))  # type: ignore[arg-type]
        assert t.is_success is is_success
    t = await one(WorkflowOutput(reward=1.0, is_success=False))
    assert t.is_success is False


async def test_an_episode_that_nobody_rewards_counts_where_no_reward_is_needed():
    unjudged = WorkflowOutput(metadata={"final_answer": "4"}, log_metrics={"length": 3})
    found = await one(unjudged, needs_reward=False)
    assert (found.status, found.reward, found.is_success) == (EpisodeStatus.OK, None, None)
    assert found.is_valid and found.reward_breakdown == {}


async def test_a_reward_that_is_there_is_taken_though_none_is_needed():
    own = await one(WorkflowOutput(reward=1.0), needs_reward=False)
    judged = await one(WorkflowOutput(), judge_that(lambda output: 0.25), needs_reward=False)
    assert (own.reward, own.is_success) == (1.0, True)
    assert (judged.reward, judged.is_success) == (0.25, False)


async def test_a_validation_needs_a_reward_also_where_training_does_not():
    [group] = await groups_of(WorkflowOutput(), needs_reward=False, mode="eval")
    assert {t.status for t in group.trajectories} == {EpisodeStatus.JUDGE_ERROR}
