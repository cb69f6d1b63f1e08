"""`ajet train`, which plain `ajet --conf X.yaml` is too: the whole run."""

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
        bool, typer.Option("--with-ray-cluster", help="Join the Ray cluster of MASTER_ADDR.")
    ] = False,
    skip_check_avail_gpu: Annotated[
        bool, typer.Option("--skip-check-avail-gpu", help="Start though GPUs are in use.")
    ] = False,
    debug: Annotated[
        str | None,
        typer.Option("--debug", "--db", help="Not taken: see `ajet debug`.", metavar="TAG"),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Train: roll out, judge, update, step by step."""
    from rich.console import Console

    from ajet.backbones import make_backbone
    from ajet.cli.notices import show_notices
    from ajet.cli.preflight import check_run
    from ajet.cli.screen_log import begin_screen_log
    from ajet.core.config import load_config
    from ajet.core.errors import ConfigError
    from ajet.core.record.summary_table import print_summary

    begin_screen_log(verbose)
    if debug is not None:
        raise ConfigError("--debug TAG is not taken: run `ajet debug --conf …`, or set breakpoints")
    resumes = [] if resume is None else [f"ajet.trainer_common.resume={_resume(resume)}"]
    options = [*(overrides or []), *resumes]
    config = load_config(conf, options, backbone=backbone, exp_dir=exp_dir, project_dir=project_dir)
    check_run(config)
    chosen = make_backbone(config)
    unused = {"--with-ray": with_ray, "--with-ray-cluster": with_ray_cluster}
    unused["--skip-check-avail-gpu"] = skip_check_avail_gpu
    show_notices([*config.notices, *(_notice(name) for name, given in unused.items() if given)])
    with _logview(with_logview, config.run_folder):
        summary = chosen.fit()
    print_summary(Console(), summary, config.run_folder, conf, overrides or [])


def _resume(resume: bool) -> str:
    return "auto" if resume else "disable"


def _notice(option: str) -> str:
    return f"ignored by backbone debug: {option} (the run is one process)"


def _logview(wanted: bool, run_folder: Path) -> AbstractContextManager[object]:
    """The page over the run while it goes on; nothing when it is not wanted."""
    if not wanted:
        return nullcontext()
    from ajet.logview.server import LogviewServer

    server = LogviewServer(run_folder)
    typer.echo(f"episodes: {server.url}")
    return server
