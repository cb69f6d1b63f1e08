"""Tools that agents may call: a sandboxed Python interpreter, for AgentScope and for others."""

from ajet.tools.python_code import (
    PYTHON_TOOL,
    answer_python_call,
    execute_python_code,
    python_tool,
    run_python,
)

__all__ = ["PYTHON_TOOL", "answer_python_call", "execute_python_code", "python_tool", "run_python"]
