"""Implements `ajet train`; plain `ajet --conf X.yaml` is the same."""

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.json_document import answer, can_ask, current_document
from ajet.cli.options import (
    Backbone,
    Conf,
    ExpDir,
    Overrides,
    ProjectDir,
    RayFlags,
    SkipCheckAvailGpu,
    Verbose,
    WithRay,
    WithRayCluster,
    serve_or_check,
    session_settings,
)
from ajet.core.text.redaction import redact

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.errors import RunChanged
    from ajet.core.record.summary import RunSummary

ACCEPT = "ajet.trainer_common.accept_changes=true"


def train(
    conf: Conf,
    overrides: Overrides = None,
    backbone: Backbone = None,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume", help="Continue from the newest checkpoint, or start over."
        ),
    ] = None,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Continue a stopped run even if code, data or settings have changed.",
        ),
    ] = False,
    with_logview: Annotated[
        bool, typer.Option("--with-logview", help="Serve the run's page during the run.")
    ] = False,
    with_ray: WithRay = False,
    with_ray_cluster: WithRayCluster = False,
    skip_check_avail_gpu: SkipCheckAvailGpu = False,
    debug: Annotated[
        str | None,
        typer.Option(
            "--debug", "--db", metavar="TAG", help='Stop at each bp("TAG"); several as "A|B".'
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Train: roll out, judge, update, step by step.

    Ctrl-C or SIGTERM once stops after the step, with a checkpoint from which the same command
    continues; twice stops at once. Exit code 0: done, 1: an error in one line, 2: wrong usage, 130:
    stopped by Ctrl-C before the end, 143: by SIGTERM.
    """
    from ajet import backbones
    from ajet.backbones.stages import fit_stages, run_folder_of
    from ajet.cli.notices import begin_command, show_notices
    from ajet.cli.preflight import check_run
    from ajet.core.config import load_stages
    from ajet.core.config.load import errors_of_stage
    from ajet.core.config.redacted import shown_overrides
    from ajet.core.errors import RunChanged, RunComplete
    from ajet.core.process.interrupt import Interrupt
    from ajet.core.rollout.gc_thresholds import lasting_imports
    from ajet.core.text.terminal import Console
    from ajet.read.reports.summary_table import print_stages, print_summary, warning_lines

    begin_command(verbose)
    resumes = [] if resume is None else [f"ajet.trainer_common.resume={_resume(resume)}"]
    accepts = [ACCEPT] if accept_changes else []
    # At a breakpoint one episode runs at a time, and it may wait for its reader for a day.
    one_episode = ["ajet.rollout.max_env_worker=1", "ajet.rollout.episode_timeout_s=86400"]
    options = [*(overrides or []), *resumes, *accepts, *([] if debug is None else one_episode)]
    stages = load_stages(conf, options, backbone=backbone, exp_dir=exp_dir, project_dir=project_dir)
    flags = RayFlags(with_ray, with_ray_cluster, skip_check_avail_gpu)
    for config in stages:
        title = [] if config.stage is None else [f"stage {config.stage}:"]
        with errors_of_stage(config.stage):
            warnings = check_run(config)
        lines = [*config.notices, *warnings, *flags.notices(config.ajet.backbone)]
        show_notices([*title, *lines] if lines else [])
    session = session_settings(flags, debug)
    if stages[0].runs_on_ray and serve_or_check(stages[0], session):
        return
    interrupt = Interrupt()
    current_folder = Path.cwd()

    def fit(config: "AjetConfig") -> "RunSummary | None":
        with _logview(with_logview, config.run_folder):
            try:
                return backbones.fit(config, session, interrupt)
            except RunChanged as changed:
                if not can_ask():
                    raise
                return backbones.fit(_answered(config, changed), session, interrupt)
            finally:
                os.chdir(current_folder)  # an agent may have left it, and paths are relative to it

    shown = shown_overrides(overrides or [], stages[0].ajet.not_secret)
    try:
        with lasting_imports():
            backbones.load(stages[0].ajet.backbone)
        if stages[0].stage is not None:
            results = fit_stages(stages, fit, interrupt)
            answer(stages=[result.as_json() for result in results])
            print_stages(Console(), results, run_folder_of(stages))
        elif (summary := fit(stages[0])) is not None:
            answer(result=_figures(summary), observations=warning_lines(summary))
            print_summary(Console(), summary, stages[0].run_folder, conf, shown)
    except RunComplete as complete:
        answer(already_complete=str(complete))
        typer.echo(complete.with_code())
        return
    except KeyboardInterrupt:
        raise typer.Exit(interrupt.exit_code) from None
    finally:
        _answer_folder(stages[-1], conf, shown)
    if interrupt.stopped_early:
        raise typer.Exit(interrupt.exit_code)


def _figures(summary: "RunSummary") -> dict[str, object]:
    """Returns summary.json without the success of each held-out task."""
    content = summary.as_json().items()
    return {name: value for name, value in content if not name.startswith("held_out")}


def _answer_folder(config: "AjetConfig", conf: Path, overrides: list[str]) -> None:
    """Adds to --json where the run is, and the commands that show more of it; also of a run that
    was stopped or failed. `overrides` are those that it was started with, without secrets."""
    import shlex

    from ajet.core.checkpoint.manifest import candidates

    if current_document() is None:
        return
    folder = config.run_folder
    newest = next(iter(candidates(folder / "checkpoints")), None)
    following = [["ajet", "export", str(folder), "--out", "trained", "--json"]]
    if not config.learns_from_rows(is_training=False):
        checkpoint = ["--conf", str(conf), "--checkpoint", str(folder)]
        following.insert(0, ["ajet", "eval", *checkpoint, "--json", *overrides])
    if config.ajet.rows is None:  # given replies have no reward
        following.insert(0, ["ajet", "why", str(folder), "--json"])
    answer(run_folder=folder, checkpoint=newest, next=[shlex.join(each) for each in following])


def _answered(config: "AjetConfig", changed: "RunChanged") -> "AjetConfig":
    """Asks what to do with a run whose experiment has changed; returns the config for that."""
    typer.echo(redact(changed.with_code()), err=True)
    answer = ""
    while answer not in ("g", "n", "q"):
        question = "(g)o on with the changes, start a (n)ew run, or (q)uit?"
        answer = typer.prompt(question, default="q", err=True).strip().lower()[:1]
    if answer == "q":
        raise typer.Exit(1)
    from ajet.core.config.nested import with_values

    if answer == "g":
        return with_values(config, {"ajet.trainer_common.accept_changes": True})
    return with_values(config, {"ajet.trainer_common.resume": _resume(False)})


def _resume(resume: bool) -> str:
    return "auto" if resume else "disable"


def _logview(is_enabled: bool, run_folder: Path) -> AbstractContextManager[object]:
    """Serves the run's page until the block ends, if enabled."""
    if not is_enabled:
        return nullcontext()
    from ajet.read.logview.server import LogviewServer

    server = LogviewServer([run_folder])
    typer.echo(f"episodes: {server.url}")
    return server
