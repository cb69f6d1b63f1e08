"""What this machine's processors are, without torch."""

import os
from pathlib import Path

BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}


def num_processors() -> int:
    """How many processors this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # macOS has not
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def has_bfloat16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tells whether the processor multiplies matrices of bfloat16 with instructions of its own, as
    Intel's (AVX512-BF16 from 2020, AMX from 2023) and AMD's (from Zen 4) do. Where it does not,
    such a product takes up to a hundred times as long as one of float32.

    Says no where the system does not tell (macOS, Windows) and of processors other than x86, whose
    products were not measured.
    """
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not BFLOAT16_INSTRUCTIONS.isdisjoint(flags.split())
