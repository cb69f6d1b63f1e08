"""An agent with a terminal solves Harbor's tasks, and their own tests give the reward.

user       instruction.md                      tool: bash(command)
assistant  bash("grep -c 404 access.log")  …   one container for each episode
assistant  Done.                               then tests/test.sh writes the reward
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from ajet.agents.single_turn import first_messages
from ajet.agents.tool_agent import ToolLoop
from ajet.core.config.section import Section
from ajet.core.errors import ConfigError, KeyMissing
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import Limit
from ajet.core.workflow.workflow import Workflow
from ajet.sandbox.command import TIMED_OUT, LimitExceeded
from ajet.sandbox.runtime import CONTAINERS, Runtime, found_folder
from ajet.suites.harbor.machine import Machine, Verdict, open_machine
from ajet.suites.harbor.task_folder import HarborTask, read_folder
from ajet.suites.suite import Suite, SuiteDataError
from ajet.tools.call import OpenTool, ToolFault
from ajet.tools.toolbox import EpisodeTools

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.workflow.tuner import ModelTuner

FOLDER = "harbor_folder"
"""The field of a task's metadata with its folder."""
SYSTEM_PROMPT = (
    "You work in a Linux terminal. Run commands with the tool bash until the task is done, then "
    "reply without a call."
)
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command of bash and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
GRACE_S = 10.0
"""By how much a tool's call may last longer than its command, which is ended in time itself."""


class HarborSection(Section):
    """The section `harbor:` of a config."""

    training: str | None = Field(
        default=None, description="A folder of task folders, or one task folder."
    )
    validation: str | None = Field(
        default=None, description="The same for the held-out tasks; null has none."
    )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        return cls.from_sections(config.user_sections(), "harbor")


class HarborReader(BaseTaskReader):
    """Reads the folders of the section `harbor:`."""

    def get_training_tasks(self) -> list[Task]:
        folder = HarborSection.from_config(self.config).training
        if folder is None:
            raise KeyMissing("harbor.training: name the folder of the training tasks")
        return read_tasks(found_folder(folder, self.config, "harbor.training"))

    def get_validation_tasks(self) -> list[Task]:
        folder = HarborSection.from_config(self.config).validation
        if folder is None:
            return []
        return read_tasks(found_folder(folder, self.config, "harbor.validation"))


def read_tasks(folder: Path | None) -> list[Task]:
    if folder is None:
        raise SuiteDataError("harbor: name a folder of tasks with --data")
    return [
        Task(task.name, task.instruction, metadata={FOLDER: str(task.folder)})
        for task in read_folder(folder)
    ]


def sandbox_of(config: AjetConfig) -> Runtime:
    """Returns the sandbox of `ajet.harness`; the image is each task's own."""
    runtime = Runtime.from_config(config)
    if not runtime.is_confined:
        raise ConfigError(
            "ajet.harness.sandbox: Harbor's tasks write to /app, /tests and /logs, so none is not "
            "possible: set bwrap, podman or docker",
            code=Code.WRONG_VALUE,
        )
    return runtime


def check_sandbox(runtime: Runtime) -> None:
    """Raises `ConfigError` if this machine lacks the sandbox."""
    key = "ajet.harness.sandbox"
    if runtime.has_image:
        runtime.check_installed(key)
    else:
        runtime.check(key)


class HarborAgent(Workflow):
    """Solves one task with the tool `bash`. An episode that a limit of tokens, calls or time ends
    is tested too, as in Harbor; the limits of `ajet.harness.limits` hold for each container, which
    has no network. `metadata` has the `rewards` that the tests wrote, the
    `problem` if they wrote none, and `ended_by` (agents/tool_agent.py; `timeout`: the task's own
    limit for its agent)."""

    name = "harbor_agent"
    reads = ("rollout.multi_turn", "rollout.compaction", "harness")

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        settings = config.ajet.rollout.multi_turn
        task = HarborTask.read(Path(workflow_task.task.metadata[FOLDER]))
        messages = first_messages(workflow_task.task, settings.system_prompt or SYSTEM_PROMPT)
        async with open_machine(task, sandbox_of(config)) as machine:
            tool = OpenTool(BASH, partial(_bash, machine, model_tuner, settings.tool_timeout_s))
            tools = EpisodeTools([tool], settings.tool_timeout_s + GRACE_S, (), {})
            loop = ToolLoop(model_tuner, tools, None, settings)
            deadline = asyncio.timeout(task.config.agent.timeout_sec)
            try:
                async with deadline:
                    ended_by = await loop.run(messages)
            except TimeoutError:
                if not deadline.expired():
                    raise
                ended_by = "timeout"
                model_tuner.truncate(f"{task.folder}: [agent] timeout_sec")
            try:
                verdict = await machine.verify()
            except LimitExceeded as limit:
                model_tuner.truncate(str(limit), limit=Limit.HARNESS)
                verdict = Verdict(problem=str(limit))
        output = await loop.output(ended_by, is_judged=True)
        output.metadata |= {"rewards": dict(verdict.rewards), "problem": verdict.problem}
        output.log_metrics["harbor_without_reward"] = float(verdict.problem is not None)
        return output

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        check_sandbox(sandbox_of(config))


async def _bash(
    machine: Machine, model: ModelTuner, timeout_s: float, arguments: dict[str, Any]
) -> str:
    try:
        outcome = await machine.run(arguments["command"], timeout_s=timeout_s)
    except LimitExceeded as limit:
        model.truncate(str(limit), limit=Limit.HARNESS)
        raise ToolFault(str(limit)) from limit
    if outcome.exit_code == TIMED_OUT:
        raise ToolFault(f"{outcome.output}\n(ended after {timeout_s:g} s)".lstrip())
    if outcome.exit_code:
        return f"{outcome.output}\n(exit code {outcome.exit_code})".lstrip()
    return outcome.output


class HarborJudge(BaseJudge):
    """Gives the reward of the task's tests; 1 or more is a success."""

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reward = Verdict(workflow_output.metadata["rewards"]).reward
        return reward, reward >= 1.0


def _prompting(config: AjetConfig) -> str:
    sandbox = config.ajet.harness.sandbox
    return f"the tool bash in {'a container of ' * (sandbox in CONTAINERS)}{sandbox}, no network"


SUITES = (
    Suite(
        name="harbor",
        about="task folders of Harbor (--data): an instruction, a container, tests",
        read_tasks=read_tasks,
        workflow="ajet.suites.harbor.agent->HarborAgent",
        judge="ajet.suites.harbor.agent->HarborJudge",
        prompting=_prompting,
        max_prompt_length=4096,
        max_response_length=8192,
    ),
)
