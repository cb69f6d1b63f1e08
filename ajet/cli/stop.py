"""Implements `ajet inspect stop RUN EPISODE`: ends one episode of a running training."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer


def stop(
    run: Annotated[Path, typer.Argument(help="The run folder, launcher_record/<experiment>.")],
    episode: Annotated[
        str, typer.Argument(help="The episode's id, as the display shows it: 000003-train-0004-02.")
    ],
) -> None:
    """End one episode of a running training.

    For example one whose tool hangs. It counts as failed, with status stopped. A model call in
    progress is waited for.
    """
    from ajet.core.record.run_folder import RunFolder
    from ajet.core.rollout.stops import ask_to_stop

    folder = RunFolder(run)
    asked = ask_to_stop(folder.stops, folder.locks(), episode)
    answer(episode=episode, asked=asked)
    typer.echo(asked)
