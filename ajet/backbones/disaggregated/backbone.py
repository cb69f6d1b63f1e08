"""Backbone trinity: an explorer and a trainer that work at the same time, joined by a buffer."""

import json
from functools import partial
from typing import TYPE_CHECKING

from ajet import assembly
from ajet.cluster.connection import SessionSettings
from ajet.core.config import AjetConfig
from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.process.interrupt import Interrupt, catch_interrupts
from ajet.core.record.run_folder import EXPLORER_LOCK, RunFolder
from ajet.core.record.run_log import run_log
from ajet.core.record.summary import RunSummary
from ajet.core.run.start import open_run
from ajet.core.text.terminal import Console

if TYPE_CHECKING:
    from ajet.serve.exchange.gateway import ExchangeGateway


def fit_disaggregated(
    config: AjetConfig,
    console: Console | None = None,
    *,
    session: SessionSettings,
    interrupt: Interrupt | None = None,
    gateway: "ExchangeGateway | None" = None,
) -> RunSummary | None:
    """Runs the config's mode: in this process for bench (each checkpoint on the held-out tasks) and
    serve (the newest checkpoint over HTTP), else on Ray. Mode colocate is both, on the same
    devices; train and explore are halves of a run.

    A training continues from the newest checkpoint, if there is one, to the last step. With
    `gateway`, clients run the episodes, except in mode train, where another command runs them."""
    console, mode = console or Console(), config.trinity.mode
    if mode == "bench":
        return bench(config, console)
    if mode == "serve":
        from ajet.backbones.disaggregated.serve import serve_model

        with catch_interrupts(interrupt) as interrupt:
            return serve_model(config, interrupt, console)
    from ajet.backbones.disaggregated.training import (
        DisaggregatedTraining,
        ExplorerOnRay,
        TrainerOnRay,
    )
    from ajet.cluster.run_attempts import run_on_ray

    if mode == "explore":
        # The run belongs to the trainer's command, which holds the run's lock and log and counts
        # the attempts; an explorer has a separate lock and log.
        with (
            RunFolder.open(config.run_folder, EXPLORER_LOCK) as folder,
            run_log(folder.logs / "explore.log"),
        ):
            make = partial(ExplorerOnRay, gateway=gateway)
            run_on_ray(make, session, config, folder, console, interrupt)
        return None
    tasks = assembly.read_tasks(config)
    with open_run(config, tasks) as folder:
        attempt = TrainerOnRay if mode == "train" else DisaggregatedTraining
        make = partial(attempt, tasks=tasks, gateway=gateway)
        return run_on_ray(make, session, config, folder, console, interrupt)


def bench(config: AjetConfig, console: Console) -> None:
    """Evaluates each checkpoint of a run on the held-out tasks, in the order of the steps, and
    rewrites bench.jsonl: {"step": N, "held_out/…": …}. Seeds and sampling are those of the run's
    validation, so the figures are equal."""
    from ajet.backbones.evaluating import Subject, evaluate_subject
    from ajet.core.checkpoint.manifest import step_of
    from ajet.core.record.step_metrics import held_out_metrics

    folder = RunFolder(config.run_folder)
    checkpoints = sorted(folder.checkpoints.glob("step_*"), key=step_of)
    if not checkpoints:
        raise CheckpointError(
            f"no checkpoint in {folder.checkpoints}: train first", code=Code.CHECKPOINT_NOT_FOUND
        )
    with folder.bench_jsonl.open("w", encoding="utf-8") as file:
        for path in checkpoints:
            report = evaluate_subject(config, Subject(checkpoint=path))
            line = {"step": step_of(path), **held_out_metrics(report.figures)}
            file.write(json.dumps(line) + "\n")
            file.flush()
            success = report.figures.success
            console.print(f"step {step_of(path)}: success {success}", markup=False)
    console.print(f"written: {folder.bench_jsonl}", markup=False, soft_wrap=True)
