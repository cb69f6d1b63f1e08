"""The tables of `ajet plan`, and its options that describe machines. (ajet/plan estimates.)"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rich.markup import escape
from rich.table import Table

from ajet.cluster.machine import configured_placement, local_node
from ajet.cluster.placement import Placement, configured_nodes, place
from ajet.core.config import AjetConfig
from ajet.core.errors import OptionError
from ajet.plan.data_sheet import GPUS, Gpu
from ajet.plan.gpu_plan import ClusterPlan, OneGpuPlan, local_gpu
from ajet.plan.model_shape import ModelShape
from ajet.plan.update_time import EpisodeSize

SIZES = {"": 1.0, "GIB": 1.0, "GB": 1.0, "G": 1.0, "MIB": 1 / 1024, "MB": 1 / 1024}
"""GB means GiB here: an "80 GB" GPU has about 80 GiB."""


@dataclass(frozen=True)
class PlanTable:
    """A part of a plan, as text: a title, and rows by column."""

    title: str
    rows: list[dict[str, str]]

    @classmethod
    def of(cls, title: str, names: Sequence[str], rows: Iterable[Sequence[str]]) -> "PlanTable":
        return cls(title, [dict(zip(names, row, strict=True)) for row in rows])

    def shown(self) -> Table:
        table = Table(title=escape(self.title))
        for name in self.rows[0] if self.rows else ():
            table.add_column(name, justify="right" if name in ("GiB", "about") else "left")
        for row in self.rows:
            table.add_row(*map(escape, row.values()))
        return table


def tables(plan: ClusterPlan | OneGpuPlan, title: str) -> Iterator[PlanTable]:
    """Yields the placement on a cluster and, if there are GPUs, memory and times."""
    parameters = f"{_parameters(plan.shape)}, {plan.gpu.name}"
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
    config: AjetConfig, title: str, size: EpisodeSize, *, with_trial: bool = False
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
    planned = cpu_plan(config, batch, size, trial, console.print)
    parameters = f"{title}: {planned.shape.parameters / 1e6:.1f} million parameters"
    yield PlanTable.of(parameters, ("memory", "GiB", "how"), planned.memory_rows())
    names = ("time", "about", "how")
    yield PlanTable.of("measured on this machine", names, planned.time_rows())


def _parameters(shape: ModelShape) -> str:
    """Describes the number of parameters and, for a mixture of experts, those that a token uses."""
    total = f"{shape.parameters / 1e9:.2f} billion parameters"
    if shape.active_parameters == shape.parameters:
        return total
    return f"{total}, {shape.active_parameters / 1e9:.2f} of them for each token"


def described_placement(
    config: AjetConfig, nodes: int | None, gpus: int | None, memory: str | None
) -> Placement:
    """Returns the placement on the cluster of --nodes, --gpus and --host-memory; without any of
    them, on the nodes that the config requests."""
    if nodes is None and gpus is None and memory is None:
        return configured_placement(config)
    host_memory = 0.0 if memory is None else _gib("--host-memory", memory)
    described = configured_nodes(config.ajet.trainer_common, local_node(), nodes, gpus, host_memory)
    return place(config, described)


def described_gpu(name: str | None, memory: str | None) -> Gpu:
    """Returns the data sheet of --gpu with the memory of --gpu-memory; without both, the data sheet
    of this machine's GPUs, if it has any."""
    if name is None and memory is None and (here := local_gpu()) is not None:
        return here
    if name is not None and name not in GPUS:
        raise OptionError(
            f"--gpu {name}: unknown; give the nearest of {', '.join(GPUS)} with --gpu-memory"
        )
    sheet = GPUS[name or "a100"]
    return sheet if memory is None else replace(sheet, memory=_gib("--gpu-memory", memory))


def _gib(option: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in SIZES or not float(match[1]):
        raise OptionError(f"{option} {text}: write 80GB or 24576MiB")
    return float(match[1]) * SIZES[match[2].upper()]
