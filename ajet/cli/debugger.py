"""Starts a debugger on the user's workflow: `ajet inspect replay --debugger pdb|debugpy`.

    pdb        stops in this terminal, on the first line of `execute`
    debugpy    waits on 127.0.0.1 for an editor to attach, with its breakpoints

A `breakpoint()` in the workflow needs neither, nor does an editor that launches the process
(.vscode/launch.json).
"""

import inspect
from collections.abc import Callable
from functools import partial

import typer

from ajet.core.errors import ConfigError, PackageMissing
from ajet.core.errors.codes import Code

HOST = "127.0.0.1"
PORT = 5678  # the port that editors attach to by default


def begin_debugger(name: str | None, port: int = PORT) -> Callable[[type], None]:
    """Returns a function to call with the workflow's class right before its episode."""
    wait = partial(_wait_for_editor, port)
    return {None: lambda _workflow: None, "pdb": _stop_in, "debugpy": wait}[name]


def _stop_in(workflow: type) -> None:
    from pdb import Pdb

    execute = inspect.unwrap(workflow.execute)  # type: ignore[attr-defined]  it is a Workflow
    code = execute.__code__
    lines = (line for _, _, line in code.co_lines() if line and line > code.co_firstlineno)
    debugger = Pdb()
    debugger.rcLines += [f"tbreak {code.co_filename}:{min(lines)}", "continue"]
    debugger.set_trace()


def _wait_for_editor(port: int, _workflow: type) -> None:
    try:
        import debugpy
    except ModuleNotFoundError as error:
        raise PackageMissing("--debugger debugpy needs a package: pip install debugpy") from error
    try:
        host, port = debugpy.listen((HOST, port))
    except RuntimeError as error:
        address = f"--debugger debugpy: {HOST}:{port}"
        raise ConfigError(
            f"{address} cannot be used ({error}); give a --debugger-port", code=Code.PORT_IN_USE
        ) from error
    typer.echo(f"attach an editor to {host}:{port} (Ctrl-C ends)", err=True)
    debugpy.wait_for_client()
