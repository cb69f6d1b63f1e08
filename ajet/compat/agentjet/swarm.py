"""The task of a thread that runs an episode: AgentJet's `begin_episode` has no argument for it."""

import threading
from contextvars import ContextVar

from ajet.core.task.task import Task

# In a separate module, because those of AgentJet's paths exist twice, as `ajet.utils.…` and under
# their full names, and each copy would have another variable.
task_of_the_thread: ContextVar[Task | None] = ContextVar("task_of_the_thread", default=None)


def task_of_this_thread() -> Task | None:
    """Returns the task that an executor has set, or the one among the arguments of a thread that
    the script started."""
    if task := task_of_the_thread.get():
        return task
    # A thread does not inherit context variables. FrozenLake's script, which plays a task at two
    # servers, passes its task only as an argument, which Thread keeps in private attributes.
    thread = threading.current_thread()
    values = (*getattr(thread, "_args", ()), *getattr(thread, "_kwargs", {}).values())
    return next((value for value in values if isinstance(value, Task)), None)
