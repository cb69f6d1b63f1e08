"""Runs Python code that a model wrote, in the sandbox. The answer has AgentScope's form:

<returncode>0</returncode><stdout>3</stdout><stderr></stderr>
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from ajet.core.errors import EnvironmentFault
from ajet.core.user_code.activity import in_call

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

    from ajet.sandbox.pool import SandboxPool

PYTHON_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "execute_python_code",
        "parameters": {
            "properties": {
                "code": {"description": "The Python program to run.", "type": "string"},
                "timeout": {
                    "default": 300,
                    "description": "The seconds after which the program is stopped.",
                    "type": "number",
                },
            },
            "required": ["code"],
            "type": "object",
        },
        "description": "Run a Python program and return its exit code, its standard output and "
        "its\nstandard error. Print whatever you want to see; nothing else comes back.",
    },
}
"""The tool's schema. The order of its keys is AgentScope's, and part of the prompt."""


async def run_python(code: str, timeout: float = 300, **kwargs: Any) -> str:
    """Run a Python program and return its exit code, its standard output and its
    standard error. Print whatever you want to see; nothing else comes back.

    Args:
        code (`str`):
            The Python program to run.
        timeout (`float`, defaults to `300`):
            The seconds after which the program is stopped.
    """
    seconds = _seconds(timeout)
    if seconds is None:
        return _format_output(-1, "", f"timeout={timeout!r} is not a positive number of seconds")
    with in_call("tool execute_python_code"):
        outcome = await _pool().run(str(code), seconds)
    _report_once()
    return _format_output(outcome.returncode, outcome.stdout, outcome.stderr)


async def execute_python_code(code: str, timeout: float = 300, **kwargs: Any) -> Any:
    # For AgentScope's `toolkit.register_tool_function`.
    from agentscope.message import TextBlock
    from agentscope.tool import ToolResponse

    text = await run_python(code, timeout)
    return ToolResponse(content=[TextBlock(type="text", text=text)])


execute_python_code.__doc__ = run_python.__doc__  # AgentScope shows it to the model


async def answer_python_call(arguments: str) -> str:
    """Returns the tool's answer to a call's arguments, which are JSON. Wrong arguments are answered
    with an error."""
    keyword_arguments = json.loads(arguments)
    try:
        inspect.signature(run_python).bind(**keyword_arguments)
    except TypeError as error:
        return f"Error: {error}"
    return await run_python(**keyword_arguments)


def python_tool() -> BaseTool:
    """Returns the tool for LangChain's agents, shown to the model word for word as `PYTHON_TOOL`. A
    call without code is answered with an error."""
    from langchain_core.tools import StructuredTool
    from pydantic import create_model

    function = PYTHON_TOOL["function"]
    arguments = create_model("execute_python_code", code=(Any, ...), timeout=(Any, 300))
    return StructuredTool(
        name=function["name"],
        description=function["description"],
        args_schema=arguments,
        coroutine=run_python,
        extras={"openai_schema": PYTHON_TOOL},
    )


def _seconds(timeout: Any) -> float | None:
    """Returns the timeout as a positive number of seconds, or None. The model writes this argument,
    so it may be anything that JSON can hold."""
    try:
        seconds = float(timeout)
    except (TypeError, ValueError):
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None


def _format_output(returncode: int, stdout: str, stderr: str) -> str:
    return (
        f"<returncode>{returncode}</returncode><stdout>{stdout}</stdout><stderr>{stderr}</stderr>"
    )


def _pool() -> SandboxPool:
    """Returns this process's sandbox, which needs Linux's system calls and is imported only
    there."""
    if sys.platform != "linux":
        raise EnvironmentFault(
            f"execute_python_code: the sandbox needs Linux, and this is {sys.platform}: "
            "run ajet in a Linux container, or give the agent another tool"
        )
    from ajet.sandbox.pool import default_pool

    return default_pool()


@cache
def _report_once() -> None:
    """Logs the sandbox's report once, after the first call: the report would start a sandbox."""
    from loguru import logger

    logger.log("WARNING" if _pool().is_weak else "DEBUG", _pool().report())
