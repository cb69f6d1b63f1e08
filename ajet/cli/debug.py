"""`ajet debug`: the first tasks in this process, each episode shown in full."""

from typing import Annotated

import typer

from ajet.cli.options import Conf, Overrides, ProjectDir, Verbose


def debug(
    conf: Conf,
    overrides: Overrides = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Run the first N tasks. [ajet.debug]")
    ] = None,
    one_at_a_time: Annotated[
        bool, typer.Option("--one-at-a-time", help="Run one episode at a time.")
    ] = False,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Run the first tasks and show each episode's conversation, reward and tokens."""
    from ajet.core.errors import ConfigError

    raise ConfigError("ajet debug is not built yet")
