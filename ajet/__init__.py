"""ajet trains the language model behind an agent.

The public names load nothing heavy: no torch, no ray, no agent framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.agents.interaction import BaseInteraction
    from ajet.agents.react import ReactAgent
    from ajet.agents.tools.tool import BaseTool, ToolResponse
    from ajet.compat.agentjet.copilot.job import AgentJetJob
    from ajet.core.breakpoint import bp
    from ajet.core.inference.chat_client import ChatClient
    from ajet.core.judge.judge import BaseJudge, GroupJudge
    from ajet.core.task.reader import BaseTaskReader
    from ajet.core.task.task import Task
    from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
    from ajet.core.workflow.graph import AgentGraphOutput, BaseAgentGraph, CustomChatModel
    from ajet.core.workflow.registry import register
    from ajet.core.workflow.tuner import AjetTuner, ModelTuner
    from ajet.core.workflow.workflow import Workflow

__version__ = "0.1.0"

# AgentJet's import paths, as `ajet.task_judge.base_judge`: see ajet/compat/agentjet/README.md.
__path__.append(f"{__path__[0]}/compat/agentjet")

__all__ = [
    "AgentGraphOutput",
    "AgentJetJob",
    "AjetTuner",
    "BaseAgentGraph",
    "BaseInteraction",
    "BaseJudge",
    "BaseTaskReader",
    "BaseTool",
    "ChatClient",
    "CustomChatModel",
    "GroupJudge",
    "ModelTuner",
    "ReactAgent",
    "Task",
    "ToolResponse",
    "Workflow",
    "WorkflowOutput",
    "WorkflowTask",
    "bp",
    "register",
]

_HOMES = {
    "AgentGraphOutput": "ajet.core.workflow.graph",
    "AgentJetJob": "ajet.copilot.job",
    "AjetTuner": "ajet.core.workflow.tuner",
    "BaseAgentGraph": "ajet.core.workflow.graph",
    "BaseInteraction": "ajet.agents.interaction",
    "BaseJudge": "ajet.core.judge.judge",
    "BaseTaskReader": "ajet.core.task.reader",
    "BaseTool": "ajet.agents.tools.tool",
    "ChatClient": "ajet.core.inference.chat_client",
    "CustomChatModel": "ajet.core.workflow.graph",
    "GroupJudge": "ajet.core.judge.judge",
    "ModelTuner": "ajet.core.workflow.tuner",
    "ReactAgent": "ajet.agents.react",
    "Task": "ajet.core.task.task",
    "ToolResponse": "ajet.agents.tools.tool",
    "Workflow": "ajet.core.workflow.workflow",
    "WorkflowOutput": "ajet.core.task.workflow_task",
    "WorkflowTask": "ajet.core.task.workflow_task",
    "bp": "ajet.core.breakpoint",
    "register": "ajet.core.workflow.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
