"""Implements `ajet train`, the whole run; plain `ajet --conf X.yaml` is the same."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Backbone, Conf, ExpDir, Overrides, ProjectDir, Verbose


def train(
    conf: Conf,
    overrides: Overrides = None,
    backbone: Backbone = None,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    resume: Annotated[
        bool | None,
        typer.Option(
            "--resume/--no-resume", help="Go on from the run folder's newest checkpoint, or anew."
        ),
    ] = None,
    with_logview: Annotated[
        bool, typer.Option("--with-logview", help="Serve the page over the run's episodes.")
    ] = False,
    with_ray: Annotated[
        bool, typer.Option("--with-ray", help="Start Ray here (backbones verl and trinity).")
    ] = False,
    with_ray_cluster: Annotated[
        bool,
        typer.Option(
            "--with-ray-cluster", help="Join the Ray of RAY_ADDRESS, or make that of MASTER_ADDR."
        ),
    ] = False,
    skip_check_avail_gpu: Annotated[
        bool, typer.Option("--skip-check-avail-gpu", help="Start though GPUs are in use.")
    ] = False,
    debug: Annotated[
        str | None,
        typer.Option(
            "--debug", "--db", metavar="TAG", help='Stop at each bp("TAG"); several as "A|B".'
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Train: roll out, judge, update, step by step."""
    from ajet.backbones import make_backbone, runs_on_ray
    from ajet.cli.notices import show_notices
    from ajet.cli.preflight import check_run
    from ajet.cli.ray_flags import RayFlags, serve_or_check, session_settings
    from ajet.cli.screen_log import begin_screen_log
    from ajet.core.config import load_config
    from ajet.core.terminal import Console
    from ajet.reports.summary_table import print_summary

    begin_screen_log(verbose)
    resumes = [] if resume is None else [f"ajet.trainer_common.resume={_resume(resume)}"]
    options = [*(overrides or []), *resumes, *_for_debugger(debug)]
    config = load_config(conf, options, backbone=backbone, exp_dir=exp_dir, project_dir=project_dir)
    check_run(config)
    flags = RayFlags(with_ray, with_ray_cluster, skip_check_avail_gpu)
    show_notices([*config.notices, *flags.notices(config.ajet.backbone)])
    session = session_settings(flags, debug)
    if runs_on_ray(config) and serve_or_check(config, session):
        return
    chosen = make_backbone(config, session)
    with _logview(with_logview, config.run_folder):
        summary = chosen.fit()
    if summary is not None:
        print_summary(Console(), summary, config.run_folder, conf, overrides or [])


def _resume(resume: bool) -> str:
    return "auto" if resume else "disable"


def _for_debugger(tags: str | None) -> list[str]:
    """Returns overrides that run one episode at a time, which may wait for its reader for a day."""
    if tags is None:
        return []
    return ["ajet.rollout.max_env_worker=1", "ajet.rollout.episode_timeout_s=86400"]


def _logview(wanted: bool, run_folder: Path) -> AbstractContextManager[object]:
    """Serves the page over the run while it goes on; does nothing when it is not wanted."""
    if not wanted:
        return nullcontext()
    from ajet.logview.server import LogviewServer

    server = LogviewServer(run_folder)
    typer.echo(f"episodes: {server.url}")
    return server
