"""Checks before anything starts whether a run fits its cluster; `ajet plan` shows the details.

    check_local(config)       on this machine alone, as --with-ray starts Ray
    cluster_plan(config, …)   on the nodes that the config requests, or others that are described

Not covered: a cluster that is joined, whose nodes are only known then.
"""

import os
from dataclasses import replace
from pathlib import Path

from ajet.cluster.data_sheet import GPUS, Gpu
from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.gpus import local_gpus, visible_gpus
from ajet.cluster.layer_shape import ModelShape
from ajet.cluster.machine import machine_memory
from ajet.cluster.memory_estimate import GIB, MemoryPart
from ajet.cluster.model_shape import model_shape, read_shape
from ajet.cluster.one_gpu_plan import OneGpuPlan
from ajet.cluster.placement import Node, Placement, configured_nodes, place
from ajet.cluster.plan import ClusterPlan
from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError, ModelError

THIS_MACHINE = "this machine"


def local_node() -> Node:
    """Returns this machine's resources."""
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS has not
    cpus = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    memory = machine_memory()
    assert memory is not None, "Ray's backbones do not run on Windows"
    return Node(THIS_MACHINE, float(cpus), local_gpus(), memory=memory / GIB)


def check_local(config: AjetConfig) -> Placement:
    """Returns the placement on this machine; ConfigError if the run does not fit on it."""
    placement = place(config, [local_node()])
    gpu = local_gpu()
    if placement.on_gpus and gpu is not None:
        for problem in memory_problems(config, placement, gpu):
            raise ConfigError(problem, code=Code.TOO_FEW_GPUS)
    return placement


def gpus_taken(config: AjetConfig) -> tuple[int, ...]:
    """Returns the GPUs of this machine that a run would use, numbered as in its device lists."""
    placement = place(config, [local_node()])
    return tuple(sorted({gpu for process in placement.processes for gpu in process.gpus}))


def local_gpu() -> Gpu | None:
    """Returns the visible GPU with the least memory, according to nvidia-smi, or None."""
    memory = [gpu.total / 1024 for gpu in visible_gpus()]
    return (
        replace(GPUS["a100"], name="GPUs of this machine", memory=min(memory)) if memory else None
    )


def configured_problems(config: AjetConfig) -> tuple[Placement, list[str]]:
    """Returns the placement on the nodes that the config requests, and a line for each thing that
    does not fit into memory there."""
    placement = configured_placement(config)
    gpu = local_gpu() or GPUS["a100"]
    return placement, memory_problems(config, placement, gpu) if placement.on_gpus else []


def shared_memory(config: AjetConfig, shape: ModelShape) -> MemoryPart:
    """Returns what is in shared memory at once on a node that the config requests. The kind of its
    GPUs has no part in it."""
    return ClusterPlan(config, configured_placement(config), shape, GPUS["a100"]).shared_memory


def configured_placement(config: AjetConfig) -> Placement:
    """Returns the placement on the nodes that the config requests. If it does not say how many GPUs
    a node has, they have as many as this machine."""
    return place(config, configured_nodes(config, local_node()))


def memory_problems(config: AjetConfig, placement: Placement, gpu: Gpu) -> list[str]:
    """Returns a line for each thing that does not fit on GPUs of this kind. The list is empty if
    the model's config.json is not on this machine."""
    try:
        shape = model_shape(config.ajet.model.path or "")
    except ModelError:
        return []  # the size is unknown before the model is loaded
    problems = ClusterPlan(config, placement, shape, gpu).problems()
    return [f"{gpu.name}, {gpu.memory:g} GiB: {problem}" for problem in problems]


def cluster_plan(
    config: AjetConfig,
    nodes: list[Node] | None,
    gpu: Gpu,
    model_config: Path | None,
    size: EpisodeSize | None = None,
) -> ClusterPlan:
    """Returns the plan of a config on these nodes, by default on those that it requests."""
    placement = place(config, nodes) if nodes else configured_placement(config)
    return ClusterPlan(config, placement, _shape(config, model_config), gpu, size)


def one_gpu_plan(
    config: AjetConfig, gpu: Gpu, model_config: Path | None, size: EpisodeSize
) -> OneGpuPlan:
    """Returns the plan of a run on backbone debug on one GPU."""
    return OneGpuPlan(config, _shape(config, model_config), gpu, size)


def _shape(config: AjetConfig, model_config: Path | None) -> ModelShape:
    """Returns the sizes in this config.json, or those of `model.path`."""
    if model_config is not None:
        return read_shape(model_config)
    return model_shape(config.ajet.model.path or "", download=True)
