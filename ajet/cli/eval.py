"""Implements `ajet eval`: measures success, mean@k and pass@k with intervals on one split, or the
success on benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ajet.cli.notices import begin_command, show_notices
from ajet.cli.options import (
    Checkpoint,
    Endpoint,
    EndpointModel,
    Overrides,
    Overwrite,
    ProjectDir,
    Verbose,
    check_outputs,
)

if TYPE_CHECKING:
    from ajet.backbones.evaluating import Subject
    from ajet.backbones.evaluating_suites import SuiteOptions
    from ajet.core.config import AjetConfig
    from ajet.reports.comparison_report import ComparisonReport
    from ajet.reports.evaluation_report import EvaluationReport
    from ajet.reports.suite_report import SuiteReport


def evaluate(
    overrides: Overrides = None,
    conf: Annotated[
        Path | None,
        typer.Option(help="The YAML that names workflow, tasks, judge and model; not for --suite."),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="A benchmark by name, in the place of --conf; may be given again."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The benchmark's files. [its installed package]")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with this model or checkpoint on the same tasks, or with the JSON of an "
            "earlier --out. With --suite."
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="A B",
            help="Compare two on the same tasks in full: the JSON of an earlier --out, a run "
            "folder or checkpoint, or a model, each.",
        ),
    ] = None,
    split: Annotated[
        Literal["validation", "training"], typer.Option(help="Whose tasks.")
    ] = "validation",
    checkpoint: Checkpoint = None,
    model: Annotated[
        str | None, typer.Option(help="A model as it is. [default: ajet.model.path]")
    ] = None,
    endpoint: Endpoint = None,
    endpoint_model: EndpointModel = None,
    num_tasks: Annotated[
        int | None,
        typer.Option(
            "--num-tasks",
            "--limit",
            min=1,
            help="The first N tasks. [those of validation: ajet.data.val_max_tasks]",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("-k", min=1, help="Episodes of a task. [ajet.trainer_common.val_pass_n]"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the result as JSON here; - prints it alone. A comparison is written in "
            "Markdown and HTML beside it.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Measure success on held-out tasks or on benchmarks.

    Shows 95 % intervals. Seeds and sampling are those of the run's own validation.
    """
    if sum(given is not None for given in (checkpoint, model, endpoint)) > 1:
        raise typer.BadParameter("give one of --checkpoint, --model and --endpoint")
    if (endpoint is None) != (endpoint_model is None):
        raise typer.BadParameter("--endpoint and --endpoint-model go together")
    if compare is not None and any(
        each is not None for each in (checkpoint, model, endpoint, against)
    ):
        raise typer.BadParameter("--compare A B names both models; leave the other options out")
    if suite is None and (data is not None or against is not None):
        raise typer.BadParameter("--data and --against go with --suite")
    if suite is not None and split == "training":
        raise typer.BadParameter("--split goes with --conf alone: a benchmark has one split")
    if suite is None and conf is None and compare is None:
        raise typer.BadParameter("give --conf, or a benchmark with --suite")
    if out is not None and out != Path("-"):
        check_outputs("--out", *_written(out, compare, suite), overwrite=overwrite)
    from ajet.backbones.evaluating import Subject

    subject = Subject(model, checkpoint, endpoint, endpoint_model)
    begin_command(verbose)
    suites = None
    if suite is not None:
        from ajet.backbones.evaluating_suites import SuiteOptions

        suites = SuiteOptions(suite, data, num_tasks, k or 1, conf, overrides or (), project_dir)
    if compare is not None:
        from ajet.cli.eval_compare import run_comparison

        run_comparison(
            compare, suites, conf, overrides or [], split, num_tasks, k, out, project_dir
        )
        return
    if suites is not None:
        run_suites(suites, subject, against, out)
        return
    assert conf is not None
    run_split(conf, overrides or [], subject, split, num_tasks, k, out, project_dir)


def _written(
    out: Path, compare: tuple[str, str] | None, suite: list[str] | None
) -> tuple[Path, ...]:
    """Returns the files that are written: a comparison and a table of benchmarks have some beside
    the JSON."""
    if compare is not None:
        from ajet.reports.comparison_report import ComparisonReport

        return ComparisonReport.files(out)
    if suite is not None:
        from ajet.reports.suite_report import SuiteReport

        return SuiteReport.files(out)
    return (out,)


def run_suites(
    options: SuiteOptions, subject: Subject, against: str | None, out: Path | None
) -> None:
    """Measures the subject on each suite, and shows the table; `out` is a JSON file, beside which
    the table is written in Markdown, or ``-``."""
    from ajet.backbones.evaluating_suites import evaluate_suites

    with episode_progress() as (on_start, on_episode):
        report = evaluate_suites(
            options,
            subject,
            against=against,
            on_notices=show_notices,
            on_start=on_start,
            on_episode=on_episode,
        )
    show_report(report, out)


def run_split(
    conf: Path,
    overrides: list[str],
    subject: Subject,
    split: Literal["validation", "training"],
    num_tasks: int | None,
    k: int | None,
    out: Path | None,
    project_dir: Path | None,
) -> None:
    """Measures the subject on a split of the config's own tasks, and shows the report."""
    from ajet.core.rollout.gc_thresholds import infrequent_gc

    with infrequent_gc():  # most objects that torch and transformers make stay
        from ajet.backbones.evaluating import evaluate_subject
    config = loaded_config(conf, overrides, subject, project_dir)
    with episode_progress() as (on_start, on_episode):
        report = evaluate_subject(
            config,
            subject,
            split=split,
            num_tasks=num_tasks,
            k=k,
            on_start=on_start,
            on_episode=on_episode,
        )
    show_report(report, out)


def loaded_config(
    conf: Path, overrides: list[str], subject: Subject, project_dir: Path | None
) -> AjetConfig:
    """Returns the config by which the subject is measured on its own tasks, and shows notices."""
    from ajet.cli.preflight import check_classes
    from ajet.core.config import load_config

    config = load_config(
        conf, overrides, backbone="debug", project_dir=project_dir, required=subject.required
    )
    check_classes(config)
    show_notices(config.notices)
    return config


def show_report(
    report: EvaluationReport | SuiteReport | ComparisonReport, out: Path | None
) -> None:
    """Shows the report, and writes it into the JSON file `out` if that is given; ``-`` prints its
    JSON alone."""
    from ajet.core.terminal import Console

    if out == Path("-"):
        typer.echo(report.as_json(), nl=False)
        return
    Console().print(report.shown())
    if out is not None:
        typer.echo(f"written: {' and '.join(map(str, report.write(out)))}")


@contextmanager
def episode_progress() -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """Shows a bar on a terminal. Gives what is called with the number of episodes, and with each
    that ends."""
    from rich.progress import Progress

    from ajet.core.terminal import Console, can_redraw

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not can_redraw(screen)) as progress:
        bar = progress.add_task("episodes", total=None)
        yield (
            lambda total: progress.update(bar, total=total),
            lambda: progress.advance(bar),
        )
