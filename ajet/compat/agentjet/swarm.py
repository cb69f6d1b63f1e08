"""Holds the task of a thread that runs an episode: AgentJet's `begin_episode` takes none."""

from contextvars import ContextVar

from ajet.core.task.task import Task

task_of_the_thread: ContextVar[Task | None] = ContextVar("task_of_the_thread", default=None)
