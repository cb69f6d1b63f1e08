"""The task of the function that begins an episode: AgentJet's `begin_episode` has no argument for
it."""

from __future__ import annotations

import sys

from ajet.core.task.task import Task


def task_of_the_caller() -> Task | None:
    """Returns the task among the arguments of the function that calls the caller, or of the nearest
    one above it that has one."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            if isinstance(task := frame.f_locals.get(name), Task):
                return task
        frame = frame.f_back
    return None
