"""Implements `ajet eval`: measures success, mean@k and pass@k with intervals on one split, or
success on benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ajet.cli.notices import begin_command, show_notices, show_report
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
    from ajet.backbones.evaluating import Subject, SuiteOptions
    from ajet.read.reports.comparison_report import ComparisonReport
    from ajet.read.reports.evaluation_report import EvaluationReport


def evaluate(
    overrides: Overrides = None,
    conf: Annotated[
        Path | None,
        typer.Option(help="The YAML that names workflow, tasks, judge and model; not for --suite."),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="A benchmark, instead of --conf; may be repeated."),
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
            help="Compare two in full on the same tasks. Each is the JSON of an earlier --out, a "
            "run folder, a checkpoint, or a model.",
        ),
    ] = None,
    split: Annotated[
        Literal["validation", "training"], typer.Option(help="Whose tasks.")
    ] = "validation",
    checkpoint: Checkpoint = None,
    model: Annotated[
        str | None, typer.Option(help="A model without training. [default: ajet.model.path]")
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
            help="Write the result as JSON here; - prints only that. A comparison is also written "
            "as Markdown and HTML, next to it.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Measure success on held-out tasks or on benchmarks.

    Shows 95 % intervals. Seeds and sampling are those of the run's validation.
    """
    if sum(option is not None for option in (checkpoint, model, endpoint)) > 1:
        raise typer.BadParameter("give one of --checkpoint, --model and --endpoint")
    if (endpoint is None) != (endpoint_model is None):
        raise typer.BadParameter("--endpoint and --endpoint-model go together")
    if compare is not None and any(
        option is not None for option in (checkpoint, model, endpoint, against)
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
    from ajet.core.rollout.gc_thresholds import lasting_imports

    with lasting_imports():
        from ajet.backbones.evaluating import Subject

    subject = Subject(model, checkpoint, endpoint, endpoint_model)
    begin_command(verbose)
    options: SplitOptions | SuiteOptions | None = None
    if suite is not None:
        from ajet.backbones.evaluating import SuiteOptions

        options = SuiteOptions(suite, data, num_tasks, k or 1, conf, overrides or (), project_dir)
    elif conf is not None:
        options = SplitOptions(conf, overrides or (), split, num_tasks, k, project_dir)
    if compare is not None:
        report = measured_in_pairs(compare, options)
    elif isinstance(options, SplitOptions):
        report = measured_on_split(options, subject)
    else:
        assert options is not None
        from ajet.backbones.evaluating import evaluate_suites

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


@dataclass(frozen=True)
class SplitOptions:
    """The split of the config's tasks to measure on."""

    conf: Path
    overrides: Sequence[str]
    split: Literal["validation", "training"]
    num_tasks: int | None
    k: int | None
    project_dir: Path | None


def _written(
    out: Path, compare: tuple[str, str] | None, suite: list[str] | None
) -> tuple[Path, ...]:
    """Returns the files to write; a comparison or a table of benchmarks has more than the JSON."""
    if compare is not None:
        from ajet.read.reports.comparison_report import ComparisonReport

        return ComparisonReport.files(out)
    if suite is not None:
        from ajet.read.reports.suite_report import SuiteReport

        return SuiteReport.files(out)
    return (out,)


def measured_on_split(options: SplitOptions, subject: Subject) -> EvaluationReport:
    from ajet.backbones.evaluating import evaluate_subject
    from ajet.cli.preflight import check_classes
    from ajet.core.config import load_config

    config = load_config(
        options.conf,
        list(options.overrides),
        backbone="debug",
        project_dir=options.project_dir,
        required=subject.required,
    )
    check_classes(config)
    show_notices(config.notices)
    with episode_progress() as (on_start, on_episode):
        return evaluate_subject(
            config,
            subject,
            split=options.split,
            num_tasks=options.num_tasks,
            k=options.k,
            on_start=on_start,
            on_episode=on_episode,
        )


def measured_in_pairs(
    sides: tuple[str, str], options: SplitOptions | SuiteOptions | None
) -> ComparisonReport:
    """Measures the sides that are not files of earlier evaluations, and compares the two."""
    from ajet.backbones.evaluating import (
        as_subject,
        compare_evaluations,
        is_recorded,
        measure_suites,
    )

    measured = [name for name in sides if not is_recorded(name)]
    if measured and options is None:
        raise typer.BadParameter(
            f"--compare: {measured[0]!r} is not the JSON file of an earlier --out, so it must be "
            "measured: give --conf, or a benchmark with --suite"
        )

    def measure(subject: Subject) -> dict[str, EvaluationReport]:
        if isinstance(options, SplitOptions):
            return {options.split: measured_on_split(options, subject)}
        assert options is not None
        with episode_progress() as (on_start, on_episode):
            return measure_suites(
                options,
                subject,
                [as_subject(name) for name in measured],
                on_notices=show_notices,
                on_start=on_start,
                on_episode=on_episode,
            )

    return compare_evaluations(*sides, measure)


@contextmanager
def episode_progress() -> Iterator[tuple[Callable[[int], None], Callable[[], None]]]:
    """Shows a bar on a terminal. Yields a function for the number of episodes, and one to call at
    the end of each."""
    from rich.progress import Progress

    from ajet.core.text.terminal import Console, can_redraw

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not can_redraw(screen)) as progress:
        bar = progress.add_task("episodes", total=None)
        yield (
            lambda total: progress.update(bar, total=total),
            lambda: progress.advance(bar),
        )
