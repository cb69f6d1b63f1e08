"""The agent's tools. The model is shown a function's name, docstring and arguments."""

from ajet.tools import run_python


async def execute_python_code(code: str, timeout: float = 300) -> str:
    """Run a Python program and return its exit code, its standard output and its
    standard error. Print whatever you want to see; nothing else comes back.

    Args:
        code (`str`):
            The Python program to run.
        timeout (`float`, defaults to `300`):
            The seconds after which the program is stopped.
    """
    return await run_python(code, timeout)  # in ajet's sandbox
