"""`ajet eval`: success, mean@k and pass@k with intervals on one split."""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Conf, ExpDir, Overrides, ProjectDir, Verbose


def evaluate(
    conf: Conf,
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="validation or training tasks.")] = "validation",
    checkpoint: Annotated[
        Path | None, typer.Option(help="A checkpoint's folder. [default: the model itself]")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="An OpenAI-compatible address instead of a model.")
    ] = None,
    num_tasks: Annotated[int | None, typer.Option(min=1, help="The first N tasks only.")] = None,
    k: Annotated[int | None, typer.Option("-k", min=1, help="Episodes of each task.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON here.")] = None,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Measure success on a split, with 95 % intervals."""
    from ajet.core.errors import ConfigError

    raise ConfigError("ajet eval is not built yet")
