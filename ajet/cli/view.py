"""Implements `ajet view [RUN …]`: serves the page of run folders, also of running ones, or writes
the page of one run as a file."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Overwrite, output_file


def view(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run folders, or a folder of run folders. [default: launcher_record]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="The port; 0 takes any free one. [default: 8181]", min=0, max=65535),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. On any but 127.0.0.1, whoever reaches it can read the "
            "runs."
        ),
    ] = "127.0.0.1",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write the page of one run as this HTML file, and serve nothing.",
            callback=output_file,
        ),
    ] = None,
    overwrite: Overwrite = False,
    episodes: Annotated[
        str | None,
        typer.Option(help="With --export: only these episodes, ids separated by commas."),
    ] = None,
) -> None:
    """Show in the browser what changed in a run, and why.

    The page goes from held-out success down to each episode's tokens.
    """
    import os
    import webbrowser

    from ajet.core.net.address import is_loopback_host
    from ajet.core.process.interrupt import catch_interrupts
    from ajet.read.logview.server import LogviewServer
    from ajet.read.recorded_run import require_run, runs_in

    roots = runs or [Path("launcher_record")]
    folders = [run for root in roots for run in runs_in(root)]
    for folder in folders:
        require_run(folder)
    if export is not None or episodes is not None:
        typer.echo(_write(folders, export, episodes))
        return
    with catch_interrupts() as interrupt, LogviewServer(roots, port, host=host) as server:
        typer.echo(f"{server.url}  (Ctrl-C ends)")
        if not is_loopback_host(host):
            typer.echo(
                f"warning: anybody who reaches {server.url} can read the runs; without --host only "
                f"this machine can, and another one by {_tunnel(server.port)}",
                err=True,
            )
        elif "SSH_CONNECTION" in os.environ:
            typer.echo(f"from your own machine: {_tunnel(server.port)}")
        if browser:
            webbrowser.open(server.url)
        interrupt.wait()
    typer.echo("")


def _tunnel(port: int) -> str:
    """Returns the command that brings a port of this machine's loopback address to another one."""
    import socket

    return f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"


def _write(folders: list[Path], file: Path | None, episodes: str | None) -> str:
    """Writes the page as a file; returns the command's message."""
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.record.run_folder import RunFolder
    from ajet.read.logview.page_file import write_page
    from ajet.read.logview.run_page import RunPage

    if file is None:
        raise ConfigError(
            "--episodes selects what --export FILE.html writes: give both",
            code=Code.OPTIONS_TOGETHER,
        )
    if len(folders) > 1:
        raise ConfigError(
            f"--export {file}: one file holds one run, not {len(folders)}",
            code=Code.OPTIONS_TOGETHER,
        )
    names = None if episodes is None else [name for name in episodes.split(",") if name]
    page = RunPage(RunFolder(folders[0]))
    try:
        size, number = write_page(page, file, names)
    finally:
        page.close()
    return f"written: {file}, {size / 1e6:.1f} MB with {number} episodes"
