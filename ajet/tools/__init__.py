"""Tools that agents may call: `execute_python_code`, a sandboxed interpreter."""

from ajet.tools.python_code import execute_python_code

__all__ = ["execute_python_code"]
