"""Runs Python code that a model wrote."""

from typing import Any


async def execute_python_code(code: str, timeout: float = 300, **kwargs: Any) -> Any:
    """Run a Python program and return its exit code, its standard output and its
    standard error. Print whatever you want to see; nothing else comes back.

    Args:
        code (`str`):
            The Python program to run.
        timeout (`float`, defaults to `300`):
            The seconds after which the program is stopped.
    """
    raise NotImplementedError
