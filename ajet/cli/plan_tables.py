"""Makes the tables of `ajet plan`, and reads what its options describe.

Not covered: the estimates (cluster/plan.py).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.markup import escape
from rich.table import Table

from ajet.cluster.capacity import local_node
from ajet.cluster.placement import Node, configured_nodes
from ajet.cluster.plan import GPUS, ClusterPlan, Gpu
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError

SIZES = {"": 1.0, "GIB": 1.0, "GB": 1.0, "G": 1.0, "MIB": 1 / 1024, "MB": 1 / 1024}
"""An "80 GB" GPU has about 80 GiB."""


def tables(plan: ClusterPlan, title: str) -> Iterator[Table]:
    """Yields the placement and, where there are GPUs, memory and times."""
    backbone = plan.config.ajet.backbone
    yield _table(f"{title}: backbone {backbone}", ("node", "device", "who"), plan.placement.rows())
    if not plan.placement.on_gpus:
        return
    titles = ("role", "memory of a GPU", "GiB", "how")
    parameters = f"{plan.shape.parameters / 1e9:.2f} billion parameters, {plan.gpu.name}"
    yield _table(parameters, titles, plan.memory_rows())
    yield _table("one step, roughly", ("what", "about", "how"), plan.time_rows())


def show_local_plan(
    config: AjetConfig, title: str, prompt_tokens: int | None, reply_tokens: int | None
) -> None:
    """Measures this machine and prints the plan of a run on backbone debug."""
    from ajet.assembly import set_threads
    from ajet.cluster.local_plan import EpisodeSize, local_plan
    from ajet.core.run.batch_plan import BatchPlan
    from ajet.core.task.reader import make_reader
    from ajet.core.terminal import Console

    set_threads(config)
    reader = make_reader(config)
    tasks, held_out = reader.get_training_tasks(), reader.get_validation_tasks()
    batch = BatchPlan(config, len(tasks), len(held_out))
    found = local_plan(config, batch, EpisodeSize.of(config, prompt_tokens, reply_tokens))
    parameters = f"{title}: {found.shape.parameters / 1e6:.1f} million parameters"
    console = Console()
    console.print(_table(parameters, ("memory", "GiB", "how"), found.memory_rows()))
    console.print(_table("measured on this machine", ("time", "about", "how"), found.time_rows()))


def _table(title: str, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=escape(title))
    for name in titles:
        table.add_column(name, justify="right" if name in ("GiB", "about") else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def described_nodes(config: AjetConfig, nodes: int | None, gpus: int | None) -> list[Node] | None:
    """Returns the cluster of --nodes and --gpus; None where neither is given."""
    if nodes is None and gpus is None:
        return None
    return configured_nodes(config, local_node(), nodes, gpus)


def described_gpu(name: str, memory: str | None) -> Gpu:
    """Returns the data sheet of --gpu with the memory of --gpu-memory."""
    if name not in GPUS:
        raise ConfigError(f"--gpu {name}: known are {', '.join(GPUS)}; take one and --gpu-memory")
    if memory is None:
        return GPUS[name]
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", memory.strip())
    if not match or match[2].upper() not in SIZES or not float(match[1]):
        raise ConfigError(f"--gpu-memory {memory}: write it as 80GB or 24576MiB")
    return replace(GPUS[name], memory=float(match[1]) * SIZES[match[2].upper()])
