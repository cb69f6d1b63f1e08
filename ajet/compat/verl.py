"""verl's names, for tools, simulated users and agent loops that were written for it. If verl is
installed the import lines may stay: ajet checks the methods of a class and not its base.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from ajet.agents.interaction import BaseInteraction
from ajet.core.workflow.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    ToolListWrap,
)
from ajet.core.workflow.loop_server import ServerManager, TokenOutput
from ajet.core.workflow.registry import register
from ajet.tools.tool import BaseTool, OpenAIFunctionToolSchema, ToolResponse

if TYPE_CHECKING:
    from ajet.agents.react_loop import ChatModel, ReactAgentLoop, convert_to_agent_output

__all__ = [
    "AgentLoopBase",
    "AgentLoopMetrics",
    "AgentLoopOutput",
    "AsyncLLMServerManager",
    "BaseInteraction",
    "BaseTool",
    "ChatModel",
    "LLMServerClient",
    "OpenAIFunctionParametersSchema",
    "OpenAIFunctionPropertySchema",
    "OpenAIFunctionSchema",
    "OpenAIFunctionToolSchema",
    "ReactAgentLoop",
    "TokenOutput",
    "ToolListWrap",
    "ToolResponse",
    "convert_to_agent_output",
    "function_tool",
    "register",
    "rollout_trace_op",
    "simple_timer",
]

F = TypeVar("F", bound=Callable[..., object])

LLMServerClient = AsyncLLMServerManager = ServerManager
OpenAIFunctionSchema = OpenAIFunctionToolSchema
OpenAIFunctionParametersSchema = OpenAIFunctionToolSchema
OpenAIFunctionPropertySchema = OpenAIFunctionToolSchema


def __getattr__(name: str) -> Any:
    if name not in ("ChatModel", "ReactAgentLoop", "convert_to_agent_output"):
        raise AttributeError(f"module 'ajet.compat.verl' has no attribute {name!r}")
    return getattr(import_module("ajet.agents.react_loop"), name)  # imports LangGraph


def function_tool(name: Any = None, *, schema: Any = None) -> Any:
    """Returns the function itself, for `@function_tool` and `@function_tool()`: the tools' file
    names it (`- function: tools.py->search`), and its schema comes from signature and docstring.
    Raises TypeError for a name or a schema, because that file would not see them."""
    if schema is not None or not (name is None or callable(name)):
        raise TypeError(
            "function_tool takes no name and no schema here: name the tool in the tools' file, as "
            "- function: file.py->function with name: …; signature and docstring are its schema"
        )
    return name if callable(name) else lambda function: function


def rollout_trace_op(function: F) -> F:
    """Returns the function itself: every call of a tool is in the run folder already."""
    return function


@contextmanager
def simple_timer(name: str, timing_raw: dict[str, float]) -> Iterator[None]:
    """Adds the duration of the block in seconds to `timing_raw[name]`."""
    started = time.perf_counter()
    try:
        yield
    finally:
        timing_raw[name] = timing_raw.get(name, 0.0) + time.perf_counter() - started
