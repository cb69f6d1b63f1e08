"""Facts about this machine's processors, without importing torch."""

import os
from pathlib import Path

BFLOAT16_INSTRUCTIONS = {"avx512_bf16", "amx_bf16"}


def num_processors() -> int:
    """Returns how many processors this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def has_bfloat16_instructions(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Returns whether the processor has instructions for bfloat16 matrix products: Intel since 2020
    (AVX512-BF16, AMX), AMD since Zen 4. Without them, a product takes up to a hundred times as long
    as in float32. False on macOS, on Windows and for processors other than x86 (not measured)."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return not BFLOAT16_INSTRUCTIONS.isdisjoint(flags.split())
