"""Implements `ajet plan`: shows where processes are placed and what they need. It loads no model
except with --try.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.json_document import answer
from ajet.cli.options import Backbone, Conf, Overrides, ProjectDir, Verbose

if TYPE_CHECKING:
    from rich.table import Table

    from ajet.cluster.placement import Placement
    from ajet.core.config import AjetConfig
    from ajet.plan.gpu_plan import ClusterPlan, OneGpuPlan
    from ajet.plan.update_time import EpisodeSize, Gpu

SIZES = {"": 1.0, "GIB": 1.0, "GB": 1.0, "G": 1.0, "MIB": 1 / 1024, "MB": 1 / 1024}
"""GB means GiB here: an "80 GB" GPU has about 80 GiB."""


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
    from ajet.cli.findings import device_findings, engine_findings
    from ajet.cli.notices import show_notices, stop_at_errors
    from ajet.cluster.machine import local_gpus
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


@dataclass(frozen=True)
class PlanTable:
    """A part of a plan, as text: a title, and rows by column."""

    title: str
    rows: list[dict[str, str]]

    @classmethod
    def of(cls, title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> "PlanTable":
        return cls(title, [dict(zip(names, row, strict=True)) for row in rows])

    def shown(self) -> "Table":
        from rich.markup import escape
        from rich.table import Table

        table = Table(title=escape(self.title))
        for name in self.rows[0] if self.rows else ():
            table.add_column(name, justify="right" if name in ("GiB", "about") else "left")
        for row in self.rows:
            table.add_row(*map(escape, row.values()))
        return table


def tables(plan: "ClusterPlan | OneGpuPlan", title: str) -> Iterator[PlanTable]:
    """Yields the placement on a cluster and, if there are GPUs, memory and times."""
    from ajet.plan.gpu_plan import OneGpuPlan

    shape = plan.shape
    parameters = f"{shape.parameters / 1e9:.2f} billion parameters"
    if shape.active_parameters != shape.parameters:  # a mixture of experts
        parameters += f", {shape.active_parameters / 1e9:.2f} of them for each token"
    parameters += f", {plan.gpu.name}"
    if isinstance(plan, OneGpuPlan):
        names = ("memory of the GPU", "GiB", "how")
        yield PlanTable.of(f"{title}: {parameters}", names, plan.memory_rows())
    else:
        who = f"{title}: backbone {plan.config.ajet.backbone}"
        yield PlanTable.of(who, ("node", "device", "who"), plan.placement.rows())
        if not plan.placement.on_gpus:
            return
        yield PlanTable.of(parameters, ("role", "memory", "GiB", "how"), plan.memory_rows())
    yield PlanTable.of("one step, roughly", ("what", "about", "how"), plan.time_rows())


def cpu_tables(
    config: "AjetConfig", title: str, size: "EpisodeSize", *, with_trial: bool = False
) -> Iterator[PlanTable]:
    """Measures this machine, with a trial also the run's episodes, and yields the plan of a run on
    backbone debug."""
    from ajet.assembly import prepare_torch
    from ajet.core.run.batch_plan import BatchPlan
    from ajet.core.task.reader import make_reader
    from ajet.core.text.terminal import Console
    from ajet.plan.cpu_plan import cpu_plan, try_rollout

    prepare_torch(config)
    reader = make_reader(config)
    tasks, held_out = reader.get_training_tasks(), reader.get_validation_tasks()
    batch = BatchPlan(config, len(tasks), len(held_out))
    console, trial = Console(), None
    if with_trial:
        console.print("trying: the first tasks are played twice, in full; Ctrl-C ends it")
        trial = try_rollout(config, tasks)
    planned = cpu_plan(batch, size, trial, console.print)
    parameters = f"{title}: {planned.shape.parameters / 1e6:.1f} million parameters"
    yield PlanTable.of(parameters, ("memory", "GiB", "how"), planned.memory_rows())
    names = ("time", "about", "how")
    yield PlanTable.of("measured on this machine", names, planned.time_rows())


def described_placement(
    config: "AjetConfig", nodes: int | None, gpus: int | None, memory: str | None
) -> "Placement":
    """Returns the placement on the cluster of --nodes, --gpus and --host-memory; without any of
    them, on the nodes that the config requests."""
    from ajet.cluster.machine import configured_placement, local_node
    from ajet.cluster.placement import configured_nodes, place

    if nodes is None and gpus is None and memory is None:
        return configured_placement(config)
    host_memory = 0.0 if memory is None else _gib("--host-memory", memory)
    described = configured_nodes(config.ajet.trainer_common, local_node(), nodes, gpus, host_memory)
    return place(config, described)


def described_gpu(name: str | None, memory: str | None) -> "Gpu":
    """Returns the data sheet of --gpu with the memory of --gpu-memory; without both, the data sheet
    of this machine's GPUs, if it has any."""
    from ajet.core.errors import OptionError
    from ajet.plan.gpu_plan import local_gpu
    from ajet.plan.update_time import GPUS

    if name is None and memory is None and (here := local_gpu()) is not None:
        return here
    if name is not None and name not in GPUS:
        raise OptionError(
            f"--gpu {name}: unknown; give the nearest of {', '.join(GPUS)} with --gpu-memory"
        )
    sheet = GPUS[name or "a100"]
    return sheet if memory is None else replace(sheet, memory=_gib("--gpu-memory", memory))


def _gib(option: str, text: str) -> float:
    from ajet.core.errors import OptionError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in SIZES or not float(match[1]):
        raise OptionError(f"{option} {text}: write 80GB or 24576MiB")
    return float(match[1]) * SIZES[match[2].upper()]
