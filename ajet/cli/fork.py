"""Implements `ajet inspect fork RUN EPISODE --turn K`: what if it had acted differently here?"""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Overrides, Overwrite, ProjectDir, Verbose, output_file


def fork(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    episode: Annotated[str, typer.Argument(help="The episode's id, or a unique beginning of it.")],
    turn: Annotated[int, typer.Option(help="The first call of the model to sample again, from 0.")],
    overrides: Overrides = None,
    num_forks: Annotated[int, typer.Option("-n", min=1, help="How many continuations.")] = 8,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A checkpoint's folder, or a run folder. [the run's newest]"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model without training, instead of a checkpoint.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="[that of the run's training]")
    ] = None,
    run_tools: Annotated[
        bool,
        typer.Option(
            "--run-tools",
            help="Call tools before the turn again instead of using their recorded answers.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write the table as JSON here; - prints only that.", callback=output_file
        ),
    ] = None,
    overwrite: Overwrite = False,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Resample a recorded episode from a chosen turn.

    Up to the turn the episode is repeated with its recorded replies, and every prompt id and state
    must be equal. Shows how each fork ends; their mean reward is the value of the turn.
    """
    if checkpoint is not None and model is not None:
        raise typer.BadParameter("give one of --checkpoint and --model")
    from ajet.backbones.debug.forking import fork_episode
    from ajet.backbones.evaluating import Subject
    from ajet.cli.notices import begin_command, show_report
    from ajet.cli.preflight import check_classes
    from ajet.cli.replay import show_error
    from ajet.read.recorded_run import RecordedRun

    begin_command(verbose)
    recorded = RecordedRun(run, project_dir, overrides or [])
    recorded.require_agent("ajet inspect fork")
    with recorded.reader() as reader:
        record = reader.episode(reader.find(episode))
    recorded.require_complete_config()
    is_chosen = checkpoint is not None or model is not None
    subject = Subject(model, checkpoint.absolute() if checkpoint else None) if is_chosen else None
    with contextlib.chdir(recorded.current_folder):
        check_classes(recorded.config)
        report = fork_episode(
            recorded,
            record,
            recorded.config,
            turn,
            num_forks,
            subject=subject,
            temperature=temperature,
            runs_tools=run_tools,
            on_error=show_error,
        )
    show_report(report, out, soft_wrap=True)
