"""Implements `ajet view RUN`: serves the page over one run folder, also while the run goes on."""

from pathlib import Path
from typing import Annotated

import typer


def view(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    port: Annotated[
        int | None,
        typer.Option(
            help="Port on 127.0.0.1; 0 takes any free one. [default: 8181]", min=0, max=65535
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Show a run's episodes, token by token, in the browser."""
    import signal
    import threading
    import webbrowser

    from ajet.core.errors import CheckpointError
    from ajet.core.record.episode_reader import EpisodeReader
    from ajet.core.record.run_folder import RunFolder
    from ajet.logview.server import LogviewServer

    stages = sorted(str(file.parent) for file in run.glob("*/episodes.sqlite"))
    if stages and not (run / "episodes.sqlite").exists():
        shown = ", ".join(stages)
        raise CheckpointError(f"{run} holds the stages of a run: view one of them: {shown}")
    EpisodeReader(
        RunFolder(run).episodes_db
    ).close()  # raises here, before the server starts, when this is no run folder
    # A signal only sets the event: an exception at any moment may be lost in a destructor.
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    with LogviewServer(run, port) as server:
        typer.echo(f"{server.url}  (Ctrl-C ends)")
        if browser:
            webbrowser.open(server.url)
        is_over.wait()
    typer.echo("")
