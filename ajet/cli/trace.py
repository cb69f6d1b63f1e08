"""Implements `ajet inspect trace RUN`: sends recorded episodes as traces to other tools."""

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overwrite, output_file

if TYPE_CHECKING:
    from ajet.core.process.interrupt import Interrupt


def trace(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send over OTLP to the receiver at this address; 'default' is that of "
            "OTEL_EXPORTER_OTLP_ENDPOINT, or http://localhost:4318.",
        ),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Write into the MLflow store of this tracking URI; 'default' is that of "
            "MLFLOW_TRACKING_URI, or the run folder's logs/mlflow.db.",
        ),
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a file for ui.perfetto.dev or chrome://tracing.",
            callback=output_file,
        ),
    ] = None,
    overwrite: Overwrite = False,
    step: Annotated[int | None, typer.Option(help="Only the episodes of this step.")] = None,
    episode: Annotated[
        list[str] | None, typer.Option(help="Only this episode; may be repeated.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Continue while the run writes, until Ctrl-C or SIGTERM."),
    ] = False,
    until_eof: Annotated[
        bool, typer.Option("--until-eof", hidden=True, help="Follow until standard input ends.")
    ] = False,
) -> None:
    """Send recorded episodes as traces.

    A span is an episode, or a call of the model, a tool, an environment or a judge.
    `ajet.trainer_common.traces` sends them during a run.
    """
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.process.interrupt import catch_interrupts
    from ajet.core.record.run_log import begin_screen_log
    from ajet.read.traces.export import TraceExport

    begin_screen_log(False)
    receivers = [("otlp", otlp)] if otlp is not None else []
    receivers += [("mlflow", mlflow)] if mlflow is not None else []
    if not receivers and perfetto is None:
        raise ConfigError(
            "say where traces go: --otlp default, --mlflow default, --perfetto FILE",
            code=Code.OPTIONS_TOGETHER,
        )
    if follow and (perfetto is not None or len(receivers) > 1 or step is not None or episode):
        raise ConfigError(
            "--follow sends all episodes to one receiver: --otlp or --mlflow",
            code=Code.OPTIONS_TOGETHER,
        )
    export = TraceExport(run)
    chosen = {"step": step, "episodes": episode or []}
    if perfetto is not None:
        number = export.write_chrome_trace(perfetto, **chosen)
        answer(file=perfetto, num_episodes=number)
        typer.echo(f"{number} episodes: {perfetto} (open it in https://ui.perfetto.dev)")
    sent: dict[str, int] = {}
    answer(sent=sent)
    for receiver, address in receivers:
        target = export.target(receiver, None if address == "default" else address)
        try:
            if follow:
                with catch_interrupts() as interrupt:
                    if until_eof:
                        reading = threading.Thread(
                            target=_stop_at_eof, args=[interrupt], daemon=True
                        )
                        reading.start()
                    number = export.follow(target, interrupt)
            else:
                number = export.send(target, **chosen)
        finally:
            target.close()
        sent[receiver] = number
        typer.echo(f"{number} episodes sent to {receiver}")


def _stop_at_eof(interrupt: "Interrupt") -> None:
    """Makes the end of standard input the same as a first Ctrl-C."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    interrupt.requested = True
