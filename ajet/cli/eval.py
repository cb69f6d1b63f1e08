"""Implements `ajet eval`: measures success, mean@k and pass@k with intervals on one split."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from ajet.cli.options import Conf, Overrides, ProjectDir, Verbose


def evaluate(
    conf: Conf,
    overrides: Overrides = None,
    split: Annotated[
        Literal["validation", "training"], typer.Option(help="Whose tasks.")
    ] = "validation",
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="A checkpoint's folder, or a run folder: its newest one."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="A model as it is. [default: ajet.model.path]")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            help="An OpenAI-compatible address (https://…/v1) instead of a model; its key is "
            "AJET_ENDPOINT_API_KEY or OPENAI_API_KEY of the environment."
        ),
    ] = None,
    endpoint_model: Annotated[
        str | None, typer.Option(help="The model's name at the endpoint.")
    ] = None,
    num_tasks: Annotated[
        int | None,
        typer.Option(
            min=1, help="The first N tasks. [those of validation: ajet.data.val_max_tasks]"
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", min=1, help="Episodes of a task. [ajet.trainer_common.val_pass_n]"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the result as JSON here; - prints it alone.")
    ] = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Measure success on a split, with 95 % intervals.

    Seeds and sampling are those of the run's own validation.
    """
    if sum(given is not None for given in (checkpoint, model, endpoint)) > 1:
        raise typer.BadParameter("give one of --checkpoint, --model and --endpoint")
    if (endpoint is None) != (endpoint_model is None):
        raise typer.BadParameter("--endpoint and --endpoint-model go together")
    if out is not None and not out.parent.is_dir():
        raise typer.BadParameter(f"--out {out}: there is no folder {out.parent}")
    if out is not None and out.is_dir():
        raise typer.BadParameter(f"--out {out}: is a folder; name a file in it")
    from rich.progress import Progress

    from ajet.backbones import make_debug_backbone
    from ajet.backbones.evaluating import Subject
    from ajet.cli.notices import show_notices
    from ajet.cli.preflight import check_classes
    from ajet.core.config import load_config
    from ajet.core.descriptors import raise_descriptor_limit
    from ajet.core.record.screen_log import begin_screen_log
    from ajet.core.terminal import Console

    begin_screen_log(verbose)
    raise_descriptor_limit()
    needs_model = endpoint is None and model is None
    required = ["ajet.model.path"] if needs_model else []
    config = load_config(
        conf, overrides or [], backbone="debug", project_dir=project_dir, required=required
    )
    check_classes(config)
    show_notices(config.notices)
    subject = Subject(model, checkpoint, endpoint, endpoint_model)
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("episodes", total=None)
        report = make_debug_backbone(config).evaluate(
            subject,
            split=split,
            num_tasks=num_tasks,
            k=k,
            on_start=lambda total: progress.update(bar, total=total),
            on_episode=lambda: progress.advance(bar),
        )
    if out == Path("-"):
        typer.echo(report.as_json(), nl=False)
        return
    Console().print(report.shown())
    if out is not None:
        report.write(out)
        typer.echo(f"written: {out}")
