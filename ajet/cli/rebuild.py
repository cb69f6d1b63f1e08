"""Implements `ajet rebuild RUN`: makes the weights of a served model again from its log."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Overrides, Verbose, refuse_existing_folder


def rebuild(
    run: Annotated[Path, typer.Argument(help="The run folder of `ajet serve --learn`.")],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save the versions in this new folder, as checkpoints (the last ones)."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Rebuild a served model's versions and compare them.

    Every promoted version is compared bit for bit. Base model, config and log suffice; no
    checkpoint is read. Exit code 1 says that one differs.
    """
    from ajet.core.error_codes import Code
    from ajet.core.errors import CheckpointError
    from ajet.core.record.recorded_run import RecordedRun
    from ajet.core.record.screen_log import begin_screen_log
    from ajet.online.rebuild import rebuild as rebuilt_versions

    begin_screen_log(verbose)
    if out is not None:
        refuse_existing_folder(out.absolute())
    recorded = RecordedRun(run.absolute(), overrides=overrides or [])
    num_same = 0
    for each in rebuilt_versions(recorded, None if out is None else out.absolute()):
        whose = f" of adapter {each.adapter}" if each.adapter else ""
        if not each.is_same:
            raise CheckpointError(
                f"version {each.version}{whose} differs: its checksum is {each.rebuilt}, and that "
                f"of the served one was {each.recorded}; packages, threads or the base model are "
                "others (attempts/ of the run folder says which it had)",
                code=Code.RUN_NOT_REBUILT,
            )
        typer.echo(f"version {each.version}{whose}: {each.rebuilt}, the same bits as were served")
        num_same += 1
    typer.echo(f"{num_same} promoted versions rebuilt from the log")
