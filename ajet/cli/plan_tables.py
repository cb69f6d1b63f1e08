"""The tables of `ajet plan`, and its options that describe machines. (ajet/plan estimates.)"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from ajet.cluster.machine import local_node
from ajet.cluster.placement import Node, configured_nodes
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.plan.cluster_plan import ClusterPlan
from ajet.plan.data_sheet import GPUS, Gpu
from ajet.plan.fits import configured_shape, local_gpu
from ajet.plan.model_shape import ModelShape
from ajet.plan.one_gpu import OneGpuPlan
from ajet.plan.update_time import EpisodeSize

SIZES = {"": 1.0, "GIB": 1.0, "GB": 1.0, "G": 1.0, "MIB": 1 / 1024, "MB": 1 / 1024}
"""GB means GiB here: an "80 GB" GPU has about 80 GiB."""


def tables(plan: ClusterPlan, title: str) -> Iterator[Table]:
    """Yields the placement and, if there are GPUs, memory and times."""
    backbone = plan.config.ajet.backbone
    yield _table(f"{title}: backbone {backbone}", ("node", "device", "who"), plan.placement.rows())
    if not plan.placement.on_gpus:
        return
    titles = ("role", "memory", "GiB", "how")
    parameters = f"{_parameters(plan.shape)}, {plan.gpu.name}"
    yield _table(parameters, titles, plan.memory_rows())
    yield _table("one step, roughly", ("what", "about", "how"), plan.time_rows())


def show_one_gpu_plan(
    config: AjetConfig, title: str, size: EpisodeSize, gpu: Gpu, model_config: Path | None
) -> list[str]:
    """Prints the plan of a run on backbone debug on one GPU; returns its problems."""
    from ajet.core.text.terminal import Console

    shape = configured_shape(config, model_config, download=True)
    planned = OneGpuPlan(config, shape, gpu, size)
    parameters = f"{title}: {_parameters(planned.shape)}, {gpu.name}"
    console = Console()
    console.print(_table(parameters, ("memory of the GPU", "GiB", "how"), planned.memory_rows()))
    console.print(_table("one step, roughly", ("what", "about", "how"), planned.time_rows()))
    return planned.problems()


def show_local_plan(
    config: AjetConfig, title: str, size: EpisodeSize, *, with_trial: bool = False
) -> None:
    """Measures this machine, with a trial also the run's episodes, and prints the plan of a run on
    backbone debug."""
    from ajet.assembly import prepare_torch
    from ajet.core.run.batch_plan import BatchPlan
    from ajet.core.task.reader import make_reader
    from ajet.core.text.terminal import Console
    from ajet.plan.one_machine import local_plan
    from ajet.plan.trial import try_rollout

    prepare_torch(config)
    reader = make_reader(config)
    tasks, held_out = reader.get_training_tasks(), reader.get_validation_tasks()
    batch = BatchPlan(config, len(tasks), len(held_out))
    trial = try_rollout(config, tasks) if with_trial else None
    console = Console()
    planned = local_plan(config, batch, size, trial, console.print)
    parameters = f"{title}: {planned.shape.parameters / 1e6:.1f} million parameters"
    console.print(_table(parameters, ("memory", "GiB", "how"), planned.memory_rows()))
    console.print(_table("measured on this machine", ("time", "about", "how"), planned.time_rows()))


def _parameters(shape: ModelShape) -> str:
    """Describes the number of parameters and, for a mixture of experts, those that a token uses."""
    total = f"{shape.parameters / 1e9:.2f} billion parameters"
    if shape.active_parameters == shape.parameters:
        return total
    return f"{total}, {shape.active_parameters / 1e9:.2f} of them for each token"


def _table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=escape(title))
    for name in titles:
        table.add_column(name, justify="right" if name in ("GiB", "about") else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def described_nodes(
    config: AjetConfig, nodes: int | None, gpus: int | None, memory: str | None
) -> list[Node] | None:
    """Returns the cluster of --nodes, --gpus and --host-memory; None without any of them."""
    if nodes is None and gpus is None and memory is None:
        return None
    host_memory = 0.0 if memory is None else _gib("--host-memory", memory)
    return configured_nodes(config.ajet.trainer_common, local_node(), nodes, gpus, host_memory)


def described_gpu(name: str | None, memory: str | None) -> Gpu:
    """Returns the data sheet of --gpu with the memory of --gpu-memory; without both, the data sheet
    of this machine's GPUs, if it has any."""
    if name is None and memory is None and (here := local_gpu()) is not None:
        return here
    if name is not None and name not in GPUS:
        raise ConfigError(
            f"--gpu {name}: unknown; give the nearest of {', '.join(GPUS)} with --gpu-memory",
            code=Code.OPTION_VALUE,
        )
    sheet = GPUS[name or "a100"]
    return sheet if memory is None else replace(sheet, memory=_gib("--gpu-memory", memory))


def _gib(option: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in SIZES or not float(match[1]):
        raise ConfigError(f"{option} {text}: write 80GB or 24576MiB", code=Code.OPTION_VALUE)
    return float(match[1]) * SIZES[match[2].upper()]
