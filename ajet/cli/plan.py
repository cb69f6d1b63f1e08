"""Implements `ajet plan`: shows which process goes where, and what it needs. It loads no model.

On backbone debug it measures this machine for some seconds.
"""

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Backbone, Conf, Overrides, ProjectDir, Verbose


def plan(
    conf: Conf,
    overrides: Overrides = None,
    backbone: Backbone = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Nodes there are. [ajet.trainer_common.nnodes]")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, help="GPUs of each. [n_gpus_per_node, or those of this machine]"),
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="Whose data sheet is taken: a100, h100, h200, l40s, a10.")
    ] = "a100",
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="80GB", help="Memory of each GPU. [the data sheet's]")
    ] = None,
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, if model.path is not at hand.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected prompt, on debug. [half of the most]")
    ] = None,
    reply_tokens: Annotated[
        int | None, typer.Option(min=1, help="Expected reply, on debug. [half of the most]")
    ] = None,
    project_dir: ProjectDir = None,
    verbose: Verbose = False,
) -> None:
    """Show placement, memory and rough times of a run before it starts."""
    from ajet.cli.notices import show_notices
    from ajet.cli.plan_tables import described_gpu, described_nodes, show_local_plan, tables
    from ajet.cluster.capacity import cluster_plan
    from ajet.core.config import load_stages
    from ajet.core.errors import ConfigError
    from ajet.core.record.screen_log import begin_screen_log
    from ajet.core.terminal import Console

    begin_screen_log(verbose)
    for config in load_stages(conf, overrides or [], backbone=backbone, project_dir=project_dir):
        title = str(conf) if config.stage is None else f"{conf}, stage {config.stage}"
        if config.ajet.backbone == "debug":
            show_local_plan(config, title, prompt_tokens, reply_tokens)
            continue
        described = described_nodes(config, nodes, gpus)
        found = cluster_plan(config, described, described_gpu(gpu, gpu_memory), model_config)
        for table in tables(found, title):
            Console().print(table)
        show_notices(config.notices, err=False)
        if problems := found.problems() if found.placement.on_gpus else []:
            stage = "" if config.stage is None else f"stage {config.stage} "
            raise ConfigError(f"{stage}does not fit: {'; '.join(problems)}")
        typer.echo("ok: by these estimates it fits")
