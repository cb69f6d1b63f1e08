"""The resources of this machine or its container, and which of its GPUs a run would use."""

import os
from pathlib import Path

from ajet.cluster.gpus import local_gpus
from ajet.cluster.placement import Node, Placement, configured_nodes, place
from ajet.core.config import AjetConfig
from ajet.core.process.processor import num_processors

THIS_MACHINE = "this machine"


def local_node() -> Node:
    memory = machine_memory()
    assert memory is not None, "Ray's backbones do not run on Windows"
    return Node(THIS_MACHINE, float(num_processors()), local_gpus(), memory=memory / 2**30)


def gpus_taken(config: AjetConfig) -> tuple[int, ...]:
    """Returns the GPUs of this machine that a run would use, numbered as in its device lists."""
    placement = place(config, [local_node()])
    return tuple(sorted({gpu for process in placement.processes for gpu in process.gpus}))


def configured_placement(config: AjetConfig) -> Placement:
    """Returns the placement on the nodes that the config requests. By default nodes have as many
    GPUs as this machine."""
    return place(config, configured_nodes(config.ajet.trainer_common, local_node()))


def machine_memory() -> int | None:
    """Returns this machine's memory in bytes, or its container's limit if that is less; None on
    Windows."""
    if not hasattr(os, "sysconf"):
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = number_in(Path("/sys/fs/cgroup/memory.max"))
    return min(total, limit) if limit is not None else total


def number_in(file: Path) -> int | None:
    """Returns the number in a kernel file; None if the file says "max" or does not exist."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
