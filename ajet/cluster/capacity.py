"""Does a run fit its cluster? Said before anything starts; `ajet plan` shows the whole of it.

    check_local(config)       on this machine alone, as --with-ray starts Ray
    cluster_plan(config, …)   on the nodes that the config names, or others that are described

Not covered: what a cluster that is joined has; its nodes are placed on when they are known.
"""

import os
from dataclasses import replace
from pathlib import Path

from ajet.cluster.gpus import local_gpus, visible_gpus
from ajet.cluster.model_shape import find_config, read_shape
from ajet.cluster.placement import Needs, Node, Placement, configured_nodes, place
from ajet.cluster.plan import GPUS, ClusterPlan, Gpu
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError, ModelError

THIS_MACHINE = "this machine"


def local_node() -> Node:
    """This machine."""
    return Node(THIS_MACHINE, float(len(os.sched_getaffinity(0))), local_gpus())


def check_local(config: AjetConfig) -> Placement:
    """The placement on this machine; ConfigError if the run does not fit here."""
    placement = place(Needs.of(config), [local_node()])
    gpu = local_gpu()
    if placement.on_gpus and gpu is not None:
        require_memory(config, placement, gpu)
    return placement


def gpus_taken(config: AjetConfig) -> tuple[int, ...]:
    """The GPUs of this machine that a run takes here, numbered as in its device lists."""
    placed = place(Needs.of(config), [local_node()])
    return tuple(sorted({gpu for process in placed.processes for gpu in process.gpus}))


def local_gpu() -> Gpu | None:
    """The smallest GPU that this process sees, as nvidia-smi tells its memory; None without any."""
    memory = [gpu.total / 1024 for gpu in visible_gpus()]
    return (
        replace(GPUS["a100"], name="GPUs of this machine", memory=min(memory)) if memory else None
    )


def configured_problems(config: AjetConfig) -> tuple[Placement, list[str]]:
    """The placement on the nodes that the config names, and what does not fit there in memory."""
    placement = configured_placement(config)
    gpu = local_gpu() or GPUS["a100"]
    return placement, memory_problems(config, placement, gpu) if placement.on_gpus else []


def configured_placement(config: AjetConfig) -> Placement:
    """On the nodes that the config names; GPUs that it leaves open are those of this machine."""
    return place(Needs.of(config), configured_nodes(config, local_node()))


def require_memory(config: AjetConfig, placement: Placement, gpu: Gpu) -> None:
    """ConfigError for the first thing that does not fit."""
    for problem in memory_problems(config, placement, gpu):
        raise ConfigError(problem)


def memory_problems(config: AjetConfig, placement: Placement, gpu: Gpu) -> list[str]:
    """What does not fit on GPUs of this kind; none where no config.json of the model is at hand."""
    try:
        shape = read_shape(find_config(config.ajet.model.path or "", download=False))
    except ModelError:
        return []  # nothing is known of its size before it is loaded
    problems = ClusterPlan(config, placement, shape, gpu).problems()
    return [f"{gpu.name}, {gpu.memory:g} GiB: {problem}" for problem in problems]


def cluster_plan(
    config: AjetConfig, nodes: list[Node] | None, gpu: Gpu, model_config: Path | None
) -> ClusterPlan:
    """The plan of a config on these nodes; by default on those that it names."""
    placement = place(Needs.of(config), nodes) if nodes else configured_placement(config)
    file = model_config or find_config(config.ajet.model.path or "", download=True)
    return ClusterPlan(config, placement, read_shape(file), gpu)
