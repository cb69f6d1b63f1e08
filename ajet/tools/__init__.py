"""Tools that agents may call: a file that lists tools becomes each episode's callable tools.

Ignores which model calls them, and when (agents/tool_agent.py).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.tools.python_code import (
        PYTHON_TOOL,
        answer_python_call,
        execute_python_code,
        python_tool,
        run_python,
    )

__all__ = ["PYTHON_TOOL", "answer_python_call", "execute_python_code", "python_tool", "run_python"]


def __getattr__(name: str) -> Any:
    # The base class of tools is part of `import ajet`, which does not load the sandbox.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("ajet.tools.python_code"), name)
