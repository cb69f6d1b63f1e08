"""Workflows by agent name: a dataset's `agent_name` column picks one for each task.

    @register("math_agent")
    class MathAgent(Workflow): ...

A task without the column runs the config's `ajet.rollout.user_workflow`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING

from ajet.core.errors import ConfigError
from ajet.core.workflow.workflow import Workflow

if TYPE_CHECKING:
    from ajet.core.task.task import Task

_WORKFLOWS: dict[str, type[Workflow]] = {}


def register(agent_name: str) -> Callable[[type[Workflow]], type[Workflow]]:
    """Class decorator: tasks whose `agent_name` is this run the class."""

    def keep(workflow: type[Workflow]) -> type[Workflow]:
        known = _WORKFLOWS.get(agent_name)
        if known is not None and _place(known) != _place(workflow):
            raise ConfigError(
                f"agent_name {agent_name!r} is registered twice: "
                f"by {_place(known)} and by {_place(workflow)}"
            )
        _WORKFLOWS[agent_name] = workflow
        return workflow

    return keep


def registered(agent_name: str) -> type[Workflow] | None:
    """The class registered under this name, if any."""
    return _WORKFLOWS.get(agent_name)


class WorkflowChooser:
    """Makes one workflow object for each episode of a task."""

    def __init__(self, default: type[Workflow] | None) -> None:
        self.default = default

    def __call__(self, task: Task) -> Workflow:
        return self.class_for(task)()

    def class_for(self, task: Task) -> type[Workflow]:
        """The registered class that the task names; the default when it names none, or when
        nothing is registered (the column then belongs to somebody else)."""
        name = task.metadata.get("agent_name")
        if name in _WORKFLOWS:
            return _WORKFLOWS[name]
        if self.default is not None and (not name or not _WORKFLOWS):
            return self.default
        raise ConfigError(_unknown(task.task_id, name))


def _unknown(task_id: str, name: str | None) -> str:
    if not name:
        return f"task {task_id} has no agent_name and ajet.rollout.user_workflow is not set"
    close = difflib.get_close_matches(str(name), _WORKFLOWS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"registered: {sorted(_WORKFLOWS) or 'none'}"
    return f"task {task_id}: no workflow is registered as agent_name {name!r}; {hint}"


def _place(workflow: type[Workflow]) -> str:
    return f"{workflow.__module__}.{workflow.__qualname__}"
