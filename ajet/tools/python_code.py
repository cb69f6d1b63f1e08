"""Runs Python code that a model wrote, in the sandbox of ajet/tools/sandbox.

    toolkit.register_tool_function(execute_python_code)

The answer has AgentScope's form:

    <returncode>0</returncode><stdout>3</stdout><stderr></stderr>

The same program gives the same answer again, `random` and the order of sets included;
sandbox/program.py says what is NOT covered by that (os.urandom, addresses, time, threads).
"""

from typing import Any

from ajet.tools.sandbox import pool

_has_reported = False


async def execute_python_code(code: str, timeout: float = 300, **kwargs: Any) -> Any:
    """Run a Python program and return its exit code, its standard output and its
    standard error. Print whatever you want to see; nothing else comes back.

    Args:
        code (`str`):
            The Python program to run.
        timeout (`float`, defaults to `300`):
            The seconds after which the program is stopped.
    """
    from agentscope.message import TextBlock
    from agentscope.tool import ToolResponse

    outcome = await pool.default_pool().run(code, timeout)
    _report_once()
    text = (
        f"<returncode>{outcome.returncode}</returncode>"
        f"<stdout>{outcome.stdout}</stdout>"
        f"<stderr>{outcome.stderr}</stderr>"
    )
    return ToolResponse(content=[TextBlock(type="text", text=text)])


def sandbox_report() -> str:
    """One line: how programs are confined on this machine."""
    return pool.default_pool().report()


def _report_once() -> None:
    """After the first call, so that asking starts nothing that the call did not start."""
    global _has_reported
    if _has_reported:
        return
    _has_reported = True
    from loguru import logger

    is_weak = pool.default_pool().is_weak
    logger.log("WARNING" if is_weak else "DEBUG", sandbox_report())
