"""Holds the task of a thread that runs an episode: AgentJet's `begin_episode` takes none."""

import threading
from contextvars import ContextVar

from ajet.core.task.task import Task

task_of_the_thread: ContextVar[Task | None] = ContextVar("task_of_the_thread", default=None)


def task_of_this_thread() -> Task | None:
    """Returns the task that an executor has set, or the one among the arguments of a thread that a
    script has started itself."""
    if task := task_of_the_thread.get():
        return task
    # A thread takes no context variables over from the one that starts it, so FrozenLake's script,
    # which plays a task at two servers, has its task in the arguments alone. Thread keeps them in
    # private attributes until it ends.
    thread = threading.current_thread()
    values = (*getattr(thread, "_args", ()), *getattr(thread, "_kwargs", {}).values())
    return next((value for value in values if isinstance(value, Task)), None)
