"""Implements `ajet plan`: shows where processes are placed and what they need. It loads no model
except with --try.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Backbone, Conf, Overrides, ProjectDir, Verbose


def plan(
    conf: Conf,
    overrides: Overrides = None,
    backbone: Backbone = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="The number of nodes. [ajet.trainer_common.nnodes]")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, help="GPUs per node. [n_gpus_per_node, or this machine's]"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="The type of GPU: a10, l4, 4090, l40s, a100-40, a100, h100, h200 or b200. "
            "[this machine's, or a100]"
        ),
    ] = None,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="80GB", help="Memory of each GPU. [the data sheet's]")
    ] = None,
    host_memory: Annotated[
        str | None,
        typer.Option(metavar="512GB", help="CPU memory of each node. [this machine's, or any]"),
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, if model.path is not here.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected tokens of a prompt. [half the limit]")
    ] = None,
    reply_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected tokens of a reply. [half the limit]")
    ] = None,
    with_trial: Annotated[
        bool,
        typer.Option(
            "--try",
            help="First roll out as many tasks as the run has at a time, and plan with their "
            "lengths and times. On debug, without a GPU.",
        ),
    ] = False,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Show a run's placement, memory and rough times.

    For GPUs these are estimates from the model's config.json and data sheets. On backbone debug
    without a GPU the engine and the update are measured for about ten seconds. Exit code 1: the run
    does not fit; the line says which key to set.
    """
    from ajet.cli.finding import stop_at_errors
    from ajet.cli.findings import device_findings, engine_findings
    from ajet.cli.notices import show_notices
    from ajet.cli.plan_tables import (
        PlanTable,
        cpu_tables,
        described_gpu,
        described_placement,
        tables,
    )
    from ajet.cluster.gpus import local_gpus
    from ajet.core.config import load_stages
    from ajet.core.config.load import errors_of_stage
    from ajet.core.errors import ConfigError
    from ajet.core.errors.codes import Code
    from ajet.core.record.run_log import begin_screen_log
    from ajet.core.text.terminal import Console
    from ajet.plan.gpu_plan import ClusterPlan, OneGpuPlan, configured_shape
    from ajet.plan.update_time import EpisodeSize

    begin_screen_log(verbose)
    shown: list[PlanTable] = []
    answer(tables=shown)

    def show(parts: Iterable[PlanTable]) -> None:
        for part in parts:
            shown.append(part)
            Console().print(part.shown())

    for config in load_stages(conf, overrides or [], backbone=backbone, project_dir=project_dir):
        with errors_of_stage(config.stage):
            title = str(conf) if config.stage is None else f"{conf}, stage {config.stage}"
            size = EpisodeSize.of(config, prompt_tokens, reply_tokens)
            if not gpu:  # --gpu describes another machine, perhaps
                engine = list(engine_findings(config))
                stop_at_errors([*device_findings(config), *engine])
                for finding in engine:
                    typer.echo(str(finding))
            on_gpu = gpu or (config.ajet.model.device != "cpu" and local_gpus() > 0)
            if config.ajet.backbone == "debug" and not on_gpu:
                show(cpu_tables(config, title, size, with_trial=with_trial))
                continue
            if with_trial:
                raise ConfigError(
                    f"--try: {conf} is not for this machine's processors, on which a trial runs; "
                    "leave --try out, or pass --backbone debug",
                    code=Code.OPTIONS_TOGETHER,
                )
            sheet = described_gpu(gpu, gpu_memory)
            if config.ajet.backbone == "debug":
                shape = configured_shape(config, model_config, download=True)
                planned = OneGpuPlan(config, shape, sheet, size)
            else:
                placement = described_placement(config, nodes, gpus, host_memory)
                shape = configured_shape(config, model_config, download=True)
                planned = ClusterPlan(config, placement, shape, sheet, size)
            show(tables(planned, title))
            if config.ajet.backbone != "debug":
                show_notices(config.notices, err=False)
            if problems := planned.problems():
                raise ConfigError(f"does not fit: {'; '.join(problems)}", code=Code.DOES_NOT_FIT)
            answer(verdict=planned.verdict)
            typer.echo(f"ok: {planned.verdict}")
