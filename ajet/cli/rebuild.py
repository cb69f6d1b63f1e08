"""Implements `ajet inspect rebuild RUN`: rebuilds the weights of a served model from its log."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Overrides, Verbose, refuse_existing_folder


def rebuild(
    run: Annotated[Path, typer.Argument(help="The run folder of `ajet serve --learn`.")],
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Save the last versions in this new folder, as checkpoints."),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Rebuild a served model's versions and compare them.

    Compares every promoted version bit for bit. Needs the base model, config and log, but no
    checkpoint. Exit code 1: one differs.
    """
    from ajet.core.errors import CheckpointError
    from ajet.core.errors.codes import Code
    from ajet.core.record.run_log import begin_screen_log
    from ajet.read.recorded_run import RecordedRun
    from ajet.serve.online.round import RebuiltVersion
    from ajet.serve.online.round import rebuild as rebuilt_versions

    begin_screen_log(verbose)
    if out is not None:
        refuse_existing_folder(out.absolute())
    recorded = RecordedRun(run.absolute(), overrides=overrides or [])
    versions: list[RebuiltVersion] = []
    answer(versions=versions)
    for version in rebuilt_versions(recorded, None if out is None else out.absolute()):
        versions.append(version)
        adapter = f" of adapter {version.adapter}" if version.adapter else ""
        if not version.is_same:
            raise CheckpointError(
                f"version {version.version}{adapter} differs: its checksum is {version.rebuilt}, "
                f"and the served one had {version.recorded}; packages, threads or the base model "
                "have changed (attempts/ of the run folder records them)",
                code=Code.RUN_NOT_REBUILT,
            )
        typer.echo(f"version {version.version}{adapter}: {version.rebuilt}, bit-identical")
    typer.echo(f"{len(versions)} promoted versions rebuilt from the log")
