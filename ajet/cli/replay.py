"""Implements `ajet inspect replay RUN EPISODE`: runs an episode again with its completions."""

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overrides, ProjectDir, Verbose

HOST = "127.0.0.1"


def replay(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    episode: Annotated[str, typer.Argument(help="The episode's id, or a unique beginning of it.")],
    overrides: Overrides = None,
    conf: Annotated[
        Path | None,
        typer.Option(
            "--conf",
            help="Use this YAML instead of the run's config, in the current folder.",
        ),
    ] = None,
    stop_at_departure: Annotated[
        bool,
        typer.Option("--stop-at-departure", help="End at the first call that differs."),
    ] = False,
    debugger: Annotated[
        Literal["pdb", "debugpy"] | None,
        typer.Option(help="pdb stops where the workflow begins; debugpy waits for an editor."),
    ] = None,
    debugger_port: Annotated[
        int, typer.Option(help="Where debugpy waits; 0 takes any free port.", min=0, max=65535)
    ] = 5678,  # the port that editors attach to by default
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Run a recorded episode again and show where it diverges.

    Workflow, tools and judge are the real ones, in the folder where the run was started; recorded
    completions replace the model. Exit code 0: every id is equal, 1: it departs.
    """
    from ajet.backbones.debug.replaying import replay_episode
    from ajet.cli.notices import begin_command, show_notices
    from ajet.cli.preflight import check_classes
    from ajet.core.config import load_config
    from ajet.core.text.terminal import Console
    from ajet.read.recorded_run import RecordedRun

    begin_command(verbose)
    recorded = RecordedRun(run, project_dir, overrides or [])
    recorded.require_agent("ajet inspect replay")
    with recorded.reader() as reader:
        record = reader.episode(reader.find(episode))
    if conf is None:
        recorded.require_complete_config()
        config, folder = recorded.config, recorded.current_folder
    else:
        config = load_config(conf, overrides or [], backbone="debug", project_dir=project_dir)
        folder = Path.cwd()
        show_notices(config.notices)
    with contextlib.chdir(folder):
        check_classes(config)
        report = replay_episode(
            recorded,
            record,
            config,
            stop_at_departure=stop_at_departure,
            on_error=show_error,
            before=begin_debugger(debugger, debugger_port),
        )
    answer(
        is_same=report.is_same,
        summary=report.summary().plain,
        differences=[
            {"call": difference.call, "description": difference.description}
            for difference in report.differences
        ],
        other_outcome=report.other_outcome,
    )
    console = Console()
    console.print(report.shown())
    console.print(report.summary(), soft_wrap=True)
    raise typer.Exit(0 if report.is_same else 1)


def show_error(error: BaseException) -> None:
    """Prints the traceback of an error of the workflow or the judge, the user's lines only."""
    from ajet.core.text.error_text import one_line, user_traceback
    from ajet.core.text.redaction import redact

    text = user_traceback(error) or f"error: {one_line(error)}\n"
    typer.echo(redact(text), nl=False, err=True)


def begin_debugger(name: str | None, port: int) -> Callable[[type], None]:
    """Returns a function to call with the workflow's class right before its episode. A
    `breakpoint()` in the workflow needs none, nor does an editor that launches the process
    (.vscode/launch.json)."""
    wait = partial(_wait_for_editor, port)
    return {None: lambda _workflow: None, "pdb": _stop_in, "debugpy": wait}[name]


def _stop_in(workflow: type) -> None:
    """Stops in this terminal, on the first line of `execute`."""
    from pdb import Pdb

    execute = inspect.unwrap(workflow.execute)  # type: ignore[attr-defined]  it is a Workflow
    code = execute.__code__
    lines = (line for _, _, line in code.co_lines() if line and line > code.co_firstlineno)
    debugger = Pdb()
    debugger.rcLines += [f"tbreak {code.co_filename}:{min(lines)}", "continue"]
    debugger.set_trace()


def _wait_for_editor(port: int, _workflow: type) -> None:
    """Waits for an editor to attach, with its breakpoints."""
    from ajet.core.errors import ConfigError, PackageMissing
    from ajet.core.errors.codes import Code

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
