"""Checks whether a run fits its GPUs before anything starts; `ajet plan` shows the details."""

from dataclasses import replace
from pathlib import Path

from ajet.cluster.gpus import visible_gpus
from ajet.cluster.machine import configured_placement, local_node
from ajet.cluster.placement import Node, Placement, place
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError, ModelError
from ajet.core.errors.codes import Code
from ajet.core.update.settings import LoraSettings
from ajet.plan.cluster_plan import ClusterPlan
from ajet.plan.data_sheet import GPUS, Gpu
from ajet.plan.memory import MemoryPart
from ajet.plan.model_config import read_config_file
from ajet.plan.model_shape import ModelShape, model_shape, shape_of
from ajet.plan.update_time import EpisodeSize


def check_local(config: AjetConfig) -> Placement:
    """Returns the placement on this machine; ConfigError if the run does not fit."""
    placement = place(config, [local_node()])
    gpu = local_gpu()
    if placement.on_gpus and gpu is not None:
        for problem in memory_problems(config, placement, gpu):
            raise ConfigError(problem, code=Code.TOO_FEW_GPUS)
    return placement


def local_gpu() -> Gpu | None:
    """Returns the visible GPU with the least memory, according to nvidia-smi, or None."""
    memory = [gpu.total / 1024 for gpu in visible_gpus()]
    if not memory:
        return None
    return replace(GPUS["a100"], name="GPUs of this machine", memory=min(memory))


def configured_problems(config: AjetConfig) -> tuple[Placement, list[str]]:
    """Returns the placement on the config's nodes, and its memory problems."""
    placement = configured_placement(config)
    gpu = local_gpu() or GPUS["a100"]
    return placement, memory_problems(config, placement, gpu) if placement.on_gpus else []


def shared_memory(config: AjetConfig, shape: ModelShape) -> MemoryPart:
    """Returns the peak in shared memory of a node, which does not depend on its GPUs."""
    return ClusterPlan(config, configured_placement(config), shape, GPUS["a100"]).shared_memory


def memory_problems(config: AjetConfig, placement: Placement, gpu: Gpu) -> list[str]:
    """Returns a line for each role that does not fit on these GPUs; none if the model's config.json
    is not on this machine."""
    try:
        shape = configured_shape(config)
    except ModelError:
        return []
    problems = ClusterPlan(config, placement, shape, gpu).problems()
    return [f"{gpu.name}, {gpu.memory:g} GiB: {problem}" for problem in problems]


def cluster_plan(
    config: AjetConfig,
    nodes: list[Node] | None,
    gpu: Gpu,
    model_config: Path | None,
    size: EpisodeSize | None = None,
) -> ClusterPlan:
    """Returns the plan of a config on these nodes, by default on those it requests."""
    placement = place(config, nodes) if nodes else configured_placement(config)
    shape = configured_shape(config, model_config, download=True)
    return ClusterPlan(config, placement, shape, gpu, size)


def configured_shape(
    config: AjetConfig, model_config: Path | None = None, *, download: bool = False
) -> ModelShape:
    """Returns the shape of this config.json, or of `model.path`, with the run's adapters."""
    lora = LoraSettings.from_config(config)
    if model_config is not None:
        return shape_of(read_config_file(model_config), str(model_config), lora)
    return model_shape(config.ajet.model.path or "", lora=lora, download=download)
