"""The GPUs of this machine, without torch: how many there are, and whether others use them.

Not covered: GPUs that are not NVIDIA's (Ray counts those of a cluster itself).
"""

import os
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ajet.core.errors import ConfigError

FREE_SHARE = 0.95
ANSWER_WITHIN_S = 20.0
QUERY = ["--query-gpu=index,memory.used,memory.total,uuid", "--format=csv,noheader,nounits"]


@dataclass(frozen=True)
class GpuMemory:
    """One GPU as nvidia-smi reports it, in MiB."""

    index: str
    used: float
    total: float
    uuid: str = ""

    def is_named(self, name: str) -> bool:
        """Whether CUDA_VISIBLE_DEVICES means it by this: an index, or the beginning of a UUID."""
        return name == self.index or (name.startswith("GPU-") and self.uuid.startswith(name))


def local_gpus(environ: Mapping[str, str] | None = None, devices: Path = Path("/dev")) -> int:
    """GPUs that a process started here sees."""
    environ = os.environ if environ is None else environ
    present = sum(path.name.removeprefix("nvidia").isdigit() for path in devices.glob("nvidia*"))
    names = _visible(environ)
    return present if names is None else min(present, len(names))


def require_free_gpus(
    gpus: Iterable[GpuMemory] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    numbers: Collection[int] | None = None,
) -> None:
    """ConfigError, in one line, if a GPU that the run takes has less than 95 % free. `numbers`
    counts those that are visible, from 0 in their order; None: all of them."""
    for number, gpu in enumerate(visible_gpus(gpus, environ)):
        if numbers is not None and number not in numbers:
            continue
        if gpu.total and gpu.used > (1 - FREE_SHARE) * gpu.total:
            raise ConfigError(
                f"GPU {gpu.index} is in use: {gpu.used / 1024:.1f} of {gpu.total / 1024:.1f} GiB; "
                "wait, choose others with CUDA_VISIBLE_DEVICES, or pass --skip-check-avail-gpu"
            )


def visible_gpus(
    gpus: Iterable[GpuMemory] | None = None, environ: Mapping[str, str] | None = None
) -> list[GpuMemory]:
    """Those that a process started here sees; by default of what nvidia-smi says."""
    names = _visible(os.environ if environ is None else environ)
    gpus = gpu_memory() if gpus is None else gpus
    return [gpu for gpu in gpus if names is None or any(map(gpu.is_named, names))]


def _visible(environ: Mapping[str, str]) -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names; as for CUDA, -1 ends the list. None: all."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    return names[: names.index("-1")] if "-1" in names else names


def gpu_memory() -> list[GpuMemory]:
    """What nvidia-smi says; nothing where there is none."""
    if not local_gpus({}) or (command := shutil.which("nvidia-smi")) is None:
        return []
    try:
        asked = subprocess.run(
            [command, *QUERY], capture_output=True, text=True, timeout=ANSWER_WITHIN_S, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return []
    return read_gpu_memory(asked.stdout)


def read_gpu_memory(table: str) -> list[GpuMemory]:
    """`0, 1024, 81559, GPU-8932…` a line."""
    rows = ([cell.strip() for cell in line.split(",")] for line in table.splitlines())
    return [
        GpuMemory(row[0], float(row[1]), float(row[2]), *row[3:])
        for row in rows
        if len(row) in (3, 4) and row[1].isdigit() and row[2].isdigit()
    ]
