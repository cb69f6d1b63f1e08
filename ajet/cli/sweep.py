"""Implements `ajet sweep`: trains one config with several values of some keys, run after run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import (
    Backbone,
    Conf,
    ExpDir,
    Overrides,
    ProjectDir,
    SkipCheckAvailGpu,
    Verbose,
    WithRay,
    WithRayCluster,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ajet.core.config import AjetConfig
    from ajet.core.config.sweep import SweepRun
    from ajet.core.process.interrupt import Interrupt


def sweep(
    conf: Conf,
    overrides: Overrides = None,
    num_random: Annotated[
        int | None,
        typer.Option(
            "--random",
            min=1,
            max=1000,
            metavar="N",
            help="Train N combinations at random, not the whole grid.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of --random.")] = 0,
    backbone: Backbone = None,
    exp_dir: ExpDir = None,
    project_dir: ProjectDir = None,
    with_ray: WithRay = False,
    with_ray_cluster: WithRayCluster = False,
    skip_check_avail_gpu: SkipCheckAvailGpu = False,
    verbose: Verbose = False,
) -> None:
    """Train with each combination of several values.

    KEY=a,b or KEY=range(0,5) are values of a grid; with --random also KEY=interval(0.1,1),
    KEY=int(interval(4,16)) and KEY=tag(log,interval(1e-6,1e-4)). All combinations are checked
    before the first run starts. The same command continues where it stopped: complete runs are
    skipped, and an unfinished one resumes. Exit code 1 if a run failed; the others are trained.
    """
    from ajet.cli.notices import begin_command
    from ajet.cli.preflight import check_run
    from ajet.core.config import load_config, load_stages
    from ajet.core.config.load import errors_of_stage
    from ajet.core.config.sweep import sweep_runs
    from ajet.core.errors import RunFailed
    from ajet.core.errors.codes import Code
    from ajet.core.process.interrupt import Interrupt, catch_interrupts
    from ajet.core.text.terminal import Console
    from ajet.read.reports.summary_table import print_sweep, sweep_rows

    begin_command(verbose)
    runs = sweep_runs(overrides or [], num_random, seed)
    # Names the folder of the runs; each run has its own checked config below.
    config = load_config(conf, runs[0].overrides, backbone=backbone, project_dir=project_dir)
    folder = (exp_dir or Path("launcher_record")) / f"{config.experiment_name}_sweep"
    options = [
        *(["--backbone", backbone] if backbone else []),
        *(["--project-dir", str(project_dir)] if project_dir else []),
        *(["--with-ray"] if with_ray else []),
        *(["--with-ray-cluster"] if with_ray_cluster else []),
        *(["--skip-check-avail-gpu"] if skip_check_avail_gpu else []),
        *(["--verbose"] if verbose else []),
    ]
    commands, folders, configs = [], [], []
    for run in runs:
        given = [*run.overrides, f"ajet.experiment_name='{run.name}'"]
        stages = load_stages(
            conf, given, backbone=backbone, exp_dir=folder, project_dir=project_dir
        )
        for stage in stages:
            with errors_of_stage(stage.stage):
                check_run(stage)
        configs.append(stages)
        folders.append(stages[-1].run_folder)
        commands.append(["--conf", str(conf), "--exp-dir", str(folder), *options, *given])
    for place in folders:
        # A run that is set aside as NAME.1 must not take the name of another one: lr=0, lr=0.1.
        place.mkdir(parents=True, exist_ok=True)
    with catch_interrupts(Interrupt()) as interrupt:
        failed = _train_all(runs, configs, commands, interrupt)
    rows = sweep_rows(runs, folders)
    answer(folder=folder, runs=rows)
    print_sweep(Console(), rows, folder)
    if interrupt.requested:
        raise typer.Exit(interrupt.exit_code)
    if failed:
        raise RunFailed(
            f"{len(failed)} of {len(runs)} runs failed: {' '.join(failed)}; the same command "
            "trains them again, and no others",
            code=Code.SWEEP_FAILED,
        )


def _train_all(
    runs: "Sequence[SweepRun]",
    configs: "Sequence[Sequence[AjetConfig]]",
    commands: "Sequence[Sequence[str]]",
    interrupt: "Interrupt",
) -> list[str]:
    """Trains the runs that are not complete, each in a separate process; returns the names of
    those that failed. Stops after the run in which a person asks to stop."""
    failed = []
    for number, (run, stages, command) in enumerate(zip(runs, configs, commands, strict=True), 1):
        title = f"run {number} of {len(runs)}: {run.name}"
        if _is_complete(stages):
            typer.echo(f"{title}: complete")
            continue
        typer.echo(title)
        code = _train(command, interrupt)
        if code in (130, 143) or interrupt.requested:
            interrupt.requested = True
            break
        if code:
            failed.append(run.name)
    return failed


def _is_complete(stages: "Sequence[AjetConfig]") -> bool:
    from ajet import assembly
    from ajet.core.errors import RunChanged, RunComplete
    from ajet.core.record.run_folder import RunFolder
    from ajet.core.run.identity import RunIdentity
    from ajet.core.run.start import decide_start

    for config in stages:
        folder = RunFolder(config.run_folder)
        if config.stage is not None or not folder.summary_json.exists():
            return False  # `ajet train` itself knows whether each stage is complete
        tasks = assembly.read_tasks(config)
        identity = RunIdentity.of(config, tasks)
        try:
            decide_start(config.ajet.trainer_common, folder, identity, tasks.total_steps)
        except RunComplete:
            continue
        except RunChanged:
            return False  # the run says so itself
        return False
    return True


def _train(arguments: "Sequence[str]", interrupt: "Interrupt") -> int:
    """Runs `ajet train` and returns its exit code. Ctrl-C reaches both processes; SIGTERM, which
    only this one gets, is passed on."""
    import signal
    import subprocess
    import sys

    from ajet.core.process.interrupt import Interrupted, nothing

    command = [sys.executable, "-m", "ajet.cli.launcher", "train", *arguments]
    # Without an input, so that a run which has changed is refused in one line.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_on() -> None:
        if interrupt.exit_code == 128 + signal.SIGTERM:
            process.terminate()

    interrupt.on_first = pass_on
    try:
        return process.wait()
    except Interrupted:  # the second signal: the run stops at once, too
        process.terminate()
        process.wait()
        raise
    finally:
        interrupt.on_first = nothing
