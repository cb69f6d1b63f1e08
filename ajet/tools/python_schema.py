"""The schema of `run_python`, and how callers without AgentScope offer it to a model.

model.bind_tools([PYTHON_TOOL])        # the tool's schema, as AgentScope's Toolkit writes it
tool = python_tool()                   # a LangChain tool of that name and schema
text = await answer_python_call('{"code": "print(1 + 2)"}')      # a call of OpenAI's form
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

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


async def answer_python_call(arguments: str) -> str:
    """Returns the tool's answer to a call's arguments, which are JSON. Wrong arguments are answered
    with an error."""
    from ajet.tools.python_code import run_python

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

    from ajet.tools.python_code import run_python

    function = PYTHON_TOOL["function"]
    arguments = create_model("execute_python_code", code=(Any, ...), timeout=(Any, 300))
    return StructuredTool(
        name=function["name"],
        description=function["description"],
        args_schema=arguments,
        coroutine=run_python,
        extras={"openai_schema": PYTHON_TOOL},
    )
