"""The resources of this machine or its container: its NVIDIA GPUs, found without torch, whether
somebody uses them, and which of them a run would use.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from ajet.cluster.placement import Node, Placement, configured_nodes, place
from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.process.process_guard import guarded
from ajet.core.process.processor import num_processors

OTHER_GPUS = ("dxg", "kfd", "nvhost-gpu", "nvgpu")
"""Device files of GPUs that torch calls cuda but that have no /dev/nvidia0: WSL, AMD, Jetsons."""
FREE_SHARE = 0.95
QUERY_TIMEOUT_S = 20.0
QUERY = ["--query-gpu=index,memory.used,memory.total,uuid", "--format=csv,noheader,nounits"]
THIS_MACHINE = "this machine"


@dataclass(frozen=True)
class GpuMemory:
    """One GPU as nvidia-smi reports it, in MiB."""

    index: str
    used: float
    total: float
    uuid: str = ""

    def is_named(self, name: str) -> bool:
        """Returns whether this entry of CUDA_VISIBLE_DEVICES (an index or the beginning of a UUID)
        names it."""
        return name == self.index or (name.startswith("GPU-") and self.uuid.startswith(name))


def local_gpus(environ: Mapping[str, str] | None = None, devices: Path = Path("/dev")) -> int:
    """Returns how many GPUs a process on this machine sees."""
    environ = os.environ if environ is None else environ
    present = sum(path.name.removeprefix("nvidia").isdigit() for path in devices.glob("nvidia*"))
    names = _visible(environ)
    return present if names is None else min(present, len(names))


def missing_device(
    device: str,
    environ: Mapping[str, str] | None = None,
    devices: Path = Path("/dev"),
    platform: str = sys.platform,
    torch_version: str | None = None,
) -> str | None:
    """Says why this machine lacks the device (`ajet.model.device`), as far as one can tell without
    torch; None if it may have it."""
    if device == "mps":
        return None if platform == "darwin" else "mps is a Mac's GPU, and this is not a Mac"
    if not device.startswith("cuda"):
        return None
    if platform == "darwin":
        return f"{device} is an NVIDIA GPU, and Macs have none"
    if platform == "linux" and not any((devices / name).exists() for name in OTHER_GPUS):
        num = local_gpus(environ, devices)
        if int(device.partition(":")[2] or 0) >= num:
            present = f"there are cuda:0 to cuda:{num - 1}" if num else "there is no GPU"
            return f"{device} is not on this machine: {present} (/dev, CUDA_VISIBLE_DEVICES)"
    if torch_version is None and find_spec("torch") is not None:
        torch_version = version("torch")
    if (torch_version or "").endswith("+cpu"):
        return f"{device}: the installed torch, {torch_version}, is built without CUDA"
    return None


def require_free_gpus(
    gpus: Iterable[GpuMemory] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    numbers: Collection[int] | None = None,
) -> None:
    """Raises ConfigError if a GPU of the run has less than 95 % of its memory free. `numbers` are
    indices among the visible GPUs; None means all of them."""
    for number, gpu in enumerate(visible_gpus(gpus, environ)):
        if numbers is not None and number not in numbers:
            continue
        if gpu.total and gpu.used > (1 - FREE_SHARE) * gpu.total:
            raise ConfigError(
                f"GPU {gpu.index} is in use: {gpu.used / 1024:.1f} of {gpu.total / 1024:.1f} GiB; "
                "wait, choose others with CUDA_VISIBLE_DEVICES, or pass --skip-check-avail-gpu",
                code=Code.GPU_IN_USE,
            )


def visible_gpus(
    gpus: Iterable[GpuMemory] | None = None, environ: Mapping[str, str] | None = None
) -> list[GpuMemory]:
    """Returns those of `gpus` (default: nvidia-smi's) that a process on this machine sees."""
    names = _visible(os.environ if environ is None else environ)
    gpus = gpu_memory() if gpus is None else gpus
    return [gpu for gpu in gpus if names is None or any(map(gpu.is_named, names))]


def _visible(environ: Mapping[str, str]) -> list[str] | None:
    """Returns the entries of CUDA_VISIBLE_DEVICES, or None if it is not set. As in CUDA, -1 ends
    the list."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return names[: names.index("-1")] if "-1" in names else names


def gpu_memory() -> list[GpuMemory]:
    """Returns the GPUs that nvidia-smi reports, none without nvidia-smi."""
    if not local_gpus({}) or (command := shutil.which("nvidia-smi")) is None:
        return []
    try:
        done = subprocess.run(
            guarded([command, *QUERY]),
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        return []
    return read_gpu_memory(done.stdout)


def read_gpu_memory(table: str) -> list[GpuMemory]:
    """Parses nvidia-smi's table, with lines such as "0, 1024, 81559, GPU-8932…"."""
    rows = ([cell.strip() for cell in line.split(",")] for line in table.splitlines())
    return [
        GpuMemory(row[0], float(row[1]), float(row[2]), *row[3:])
        for row in rows
        if len(row) in (3, 4) and row[1].isdigit() and row[2].isdigit()
    ]


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
