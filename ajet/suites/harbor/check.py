"""Runs a Harbor task without a model: its solution must be rewarded, and doing nothing must not."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ajet.core.errors import EnvironmentFault
from ajet.sandbox.runtime import Runtime
from ajet.sandbox.session import LimitExceeded
from ajet.suites.harbor.machine import Verdict, open_machine
from ajet.suites.harbor.task_folder import HarborTask


@dataclass(frozen=True)
class TaskReport:
    """The verdicts on the solution and on an untouched container, and the seconds of both."""

    name: str
    solution: Verdict
    empty: Verdict
    seconds: float

    @property
    def fault(self) -> str | None:
        """Returns why the task is of no use, or None."""
        if self.solution.problem is not None:
            return f"with the solution, {self.solution.problem}"
        if self.solution.reward < 1.0:
            return f"the solution's reward is {self.solution.reward:g}"
        if self.empty.reward >= self.solution.reward:
            return "doing nothing has the solution's reward"
        return None


async def check_task(task: HarborTask, runtime: Runtime) -> TaskReport:
    started = time.monotonic()
    solution = await _verdict(task, runtime, solved=True)
    empty = await _verdict(task, runtime, solved=False)
    return TaskReport(task.name, solution, empty, time.monotonic() - started)


async def _verdict(task: HarborTask, runtime: Runtime, *, solved: bool) -> Verdict:
    try:
        async with open_machine(task, runtime) as machine:
            if solved:
                await machine.solve()
            return await machine.verify()
    except (EnvironmentFault, LimitExceeded) as error:
        return Verdict(problem=str(error))
