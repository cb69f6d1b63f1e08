"""User code that raises what ends a program fails its episode; a person's Ctrl-C ends the run."""

import asyncio
import os
import signal

import pytest

from ajet import BaseJudge, Task, Workflow, WorkflowOutput
from ajet.core.environment.environment import Environment
from ajet.core.environment.live import open_environment
from ajet.core.environment.registry import EnvironmentMaker
from ajet.core.errors import EnvironmentFault
from ajet.core.process.interrupt import catch_interrupts
from ajet.core.rollout.request import RolloutRequest
from ajet.core.trajectory.trajectory import EpisodeStatus
from tests.fakes import ScriptedEndpoint, chat_tokenizer, episode_runner

TOKENIZER = chat_tokenizer("qwen2_5")
ENDS = [KeyboardInterrupt, GeneratorExit, SystemExit, BaseException]


class Fails(Workflow):
    """Member 0 is good, member 1 raises `error`."""

    async def execute(self, workflow_task, model_tuner):
        if workflow_task.rollout_index:
            raise type(self).error
        return WorkflowOutput(reward=1.0)


class Plain(Workflow):
    async def execute(self, workflow_task, model_tuner):
        return WorkflowOutput()


class FailsForOne(BaseJudge):
    error: type[BaseException]

    def compute_reward(self, workflow_task, workflow_output):
        if workflow_task.rollout_index:
            raise type(self).error
        return 1.0


class FailsLater(FailsForOne):
    async def compute_reward(self, workflow_task, workflow_output):
        await asyncio.sleep(0)
        return super().compute_reward(workflow_task, workflow_output)


async def pair(workflow, judge=None):
    """The two members of a group."""
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "fine")
    runner = episode_runner(workflow, endpoint, TOKENIZER, judge, max_failure_rate=1.0)
    request = RolloutRequest([Task("t", "q")], step=0, mode="train", num_repeat=2)
    [group] = await runner.rollout(request)
    return group.trajectories


@pytest.mark.parametrize("error", ENDS)
def test_a_workflow_that_raises_what_ends_a_program_ends_its_episode_alone(error):
    Fails.error = error
    with catch_interrupts():
        good, bad = asyncio.run(pair(Fails))
    assert (good.status, good.reward) == (EpisodeStatus.OK, 1.0)
    assert bad.status is EpisodeStatus.AGENT_ERROR
    assert bad.error and "\n" not in bad.error


@pytest.mark.parametrize("judge", [FailsForOne, FailsLater])
@pytest.mark.parametrize("error", ENDS)
def test_a_judge_that_raises_what_ends_a_program_ends_its_episode_alone(error, judge):
    judge.error = error
    with catch_interrupts():
        good, bad = asyncio.run(pair(Plain, judge()))
    assert (good.status, good.reward) == (EpisodeStatus.OK, 1.0)
    assert (bad.status, bad.reward) == (EpisodeStatus.JUDGE_ERROR, None)
    assert bad.error.startswith(f"judge {judge.__name__!r} raised ") and "\n" not in bad.error


class Raises(Environment):
    error: type[BaseException]

    def reset(self, seed=None, options=None):
        return "begin", {}

    def step(self, action):
        raise type(self).error


@pytest.mark.parametrize("isolation", ["inline", "thread"])
@pytest.mark.parametrize("error", ENDS)
def test_an_environment_that_raises_what_ends_a_program_is_a_fault_of_one_line(error, isolation):
    async def step():
        async with open_environment(
            EnvironmentMaker(Raises, (), "raises", {}, ()), isolation
        ) as environment:
            await environment.reset(1, {})
            await environment.step("go")

    Raises.error = error
    with catch_interrupts(), pytest.raises(EnvironmentFault, match=r"Raises\.step\(\) raised"):
        asyncio.run(step())


class InterruptedByAPerson(Workflow):
    async def execute(self, workflow_task, model_tuner):
        for _ in range(2):  # the second one ends the run at once
            os.kill(os.getpid(), signal.SIGINT)
        return WorkflowOutput(reward=1.0)


def test_a_persons_second_interrupt_ends_the_run_also_within_user_code():
    with catch_interrupts() as interrupt, pytest.raises(KeyboardInterrupt):
        asyncio.run(pair(InterruptedByAPerson))
    assert interrupt.requested


class ChangesItsTask(Workflow):
    """Takes its answer out of the row, and fails at its first attempt."""

    async def execute(self, workflow_task, model_tuner):
        answer = workflow_task.task.metadata.pop("answer")
        if not workflow_task.episode_id.endswith("-r1"):
            raise OSError("connection lost")
        return WorkflowOutput(reward=1.0, metadata={"answer": answer})


async def test_another_attempt_gets_the_task_as_it_was_before_the_first():
    endpoint = ScriptedEndpoint(TOKENIZER, lambda *_: "fine")
    runner = episode_runner(
        ChangesItsTask, endpoint, TOKENIZER, failure_policy="retry", max_retries=1
    )
    task = Task("t", "q", metadata={"answer": "4"})
    [group] = await runner.rollout(RolloutRequest([task], step=0, mode="train", num_repeat=2))
    assert [t.output.metadata["answer"] for t in group.trajectories] == ["4", "4"]
    assert task.metadata == {"answer": "4"}
