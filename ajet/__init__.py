"""ajet trains the language model behind an agent.

The public names are documented in docs/api.md. Importing them does not load torch, ray or an agent
framework, except for the names for writing a policy loss, which need torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ajet import former_modules

if TYPE_CHECKING:
    from ajet.agents.interaction import BaseInteraction
    from ajet.agents.react import ReactAgent
    from ajet.compat.agentjet.copilot.job import AgentJetJob
    from ajet.core.advantage.credit import AdvantageOptions, EpisodeCredit
    from ajet.core.config.tree import AjetConfig
    from ajet.core.environment.environment import Environment
    from ajet.core.errors import AjetError, ConfigError, EnvironmentFault
    from ajet.core.inference.chat_client import ChatClient
    from ajet.core.inference.endpoint import Completion
    from ajet.core.judge.judge import BaseJudge, GroupJudge
    from ajet.core.losses.mini_batch_tokens import MiniBatchTokens
    from ajet.core.losses.token_loss import LossInputs, TokenLoss
    from ajet.core.task.reader import BaseTaskReader
    from ajet.core.task.results import TaskResults
    from ajet.core.task.task import Task
    from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
    from ajet.core.update.settings import UpdateSettings
    from ajet.core.user_code.breakpoint import bp
    from ajet.core.workflow.chat_reply import ChatReply
    from ajet.core.workflow.compaction import Compaction
    from ajet.core.workflow.gateway.gateway import Address
    from ajet.core.workflow.graph import AgentGraphOutput, BaseAgentGraph, CustomChatModel
    from ajet.core.workflow.registry import register
    from ajet.core.workflow.tuner import AjetTuner, ModelTuner
    from ajet.core.workflow.workflow import Workflow
    from ajet.tools.tool import BaseTool, ToolResponse

__version__ = "0.1.0"

# AgentJet's import paths, such as `ajet.task_judge.base_judge`: ajet/compat/agentjet/README.md.
__path__.append(f"{__path__[0]}/compat/agentjet")
former_modules.install()

__all__ = [
    "Address",
    "AdvantageOptions",
    "AgentGraphOutput",
    "AgentJetJob",
    "AjetConfig",
    "AjetError",
    "AjetTuner",
    "BaseAgentGraph",
    "BaseInteraction",
    "BaseJudge",
    "BaseTaskReader",
    "BaseTool",
    "ChatClient",
    "ChatReply",
    "Compaction",
    "Completion",
    "ConfigError",
    "CustomChatModel",
    "Environment",
    "EnvironmentFault",
    "EpisodeCredit",
    "GroupJudge",
    "LossInputs",
    "MiniBatchTokens",
    "ModelTuner",
    "ReactAgent",
    "Task",
    "TaskResults",
    "TokenLoss",
    "ToolResponse",
    "UpdateSettings",
    "Workflow",
    "WorkflowOutput",
    "WorkflowTask",
    "bp",
    "register",
]

_HOMES = {
    "Address": "ajet.core.workflow.gateway.gateway",
    "AdvantageOptions": "ajet.core.advantage.credit",
    "AgentGraphOutput": "ajet.core.workflow.graph",
    "AgentJetJob": "ajet.copilot.job",
    "AjetConfig": "ajet.core.config.tree",
    "AjetError": "ajet.core.errors",
    "AjetTuner": "ajet.core.workflow.tuner",
    "BaseAgentGraph": "ajet.core.workflow.graph",
    "BaseInteraction": "ajet.agents.interaction",
    "BaseJudge": "ajet.core.judge.judge",
    "BaseTaskReader": "ajet.core.task.reader",
    "BaseTool": "ajet.tools.tool",
    "ChatClient": "ajet.core.inference.chat_client",
    "ChatReply": "ajet.core.workflow.chat_reply",
    "Compaction": "ajet.core.workflow.compaction",
    "Completion": "ajet.core.inference.endpoint",
    "ConfigError": "ajet.core.errors",
    "CustomChatModel": "ajet.core.workflow.graph",
    "Environment": "ajet.core.environment.environment",
    "EnvironmentFault": "ajet.core.errors",
    "EpisodeCredit": "ajet.core.advantage.credit",
    "GroupJudge": "ajet.core.judge.judge",
    "LossInputs": "ajet.core.losses.token_loss",
    "MiniBatchTokens": "ajet.core.losses.mini_batch_tokens",
    "ModelTuner": "ajet.core.workflow.tuner",
    "ReactAgent": "ajet.agents.react",
    "Task": "ajet.core.task.task",
    "TaskResults": "ajet.core.task.results",
    "TokenLoss": "ajet.core.losses.token_loss",
    "ToolResponse": "ajet.tools.tool",
    "UpdateSettings": "ajet.core.update.settings",
    "Workflow": "ajet.core.workflow.workflow",
    "WorkflowOutput": "ajet.core.task.workflow_task",
    "WorkflowTask": "ajet.core.task.workflow_task",
    "bp": "ajet.core.user_code.breakpoint",
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
