r"""GSM8K: school mathematics in words; the last \boxed{…} is compared with the answer after `####`.

The prompt has no examples, while figures of base models are often with eight.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet.core.task.reader import tasks_from_rows
from ajet.core.task.row_files import read_split
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.workflow import Workflow
from ajet.suites.suite import Suite

if TYPE_CHECKING:
    from ajet.core.workflow.tuner import ModelTuner

HUB = "gsm8k/main"
INSTRUCTION = "Reason step by step, and put the final answer within \\boxed{}."


def read_tasks(folder: Path | None) -> list[Task]:
    """Returns the 1,319 test problems, from a folder with test.jsonl or from the Hub."""
    source = HUB if folder is None else str(folder)
    return tasks_from_rows(read_split(source, "test", []), split="test", source=source)


class MathAgent(Workflow):
    name = "gsm8k_agent"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        question = f"{workflow_task.task.main_query}\n{INSTRUCTION}"
        reply = await model_tuner.chat([{"role": "user", "content": question}])
        return WorkflowOutput(metadata={"final_answer": reply["content"]})


SUITES = (
    Suite(
        name="gsm8k",
        about="school mathematics in words",
        read_tasks=read_tasks,
        workflow="ajet.suites.gsm8k->MathAgent",
        judge="math",
        prompting=f'no example; below the question: "{INSTRUCTION}"',
    ),
)
