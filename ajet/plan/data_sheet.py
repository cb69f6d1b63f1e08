"""Figures of NVIDIA's data sheets of A10, A100 (SXM), L4, L40S, H100 (SXM), H200 (SXM) and DGX
B200, and of its Ada architecture white paper for the RTX 4090. Numbers "with sparsity" are halved.
"""

from dataclasses import dataclass

PCIE_4 = 32e9
"""Bytes/s of sixteen PCIe 4.0 lanes in one direction."""


@dataclass(frozen=True)
class Gpu:
    """Memory in GiB, dense bfloat16 FLOP/s with float32 sums, bytes/s of the memory and, in one
    direction, of the link to other GPUs of the node."""

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float = PCIE_4


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a10", 24, 125e12, 0.6e12),
        Gpu("l4", 24, 121e12, 0.3e12),
        Gpu("4090", 24, 165e12, 1.008e12),
        Gpu("l40s", 48, 362e12, 0.864e12),
        Gpu("a100-40", 40, 312e12, 1.555e12, 300e9),
        Gpu("a100", 80, 312e12, 2.039e12, 300e9),
        Gpu("h100", 80, 989e12, 3.35e12, 450e9),
        Gpu("h200", 141, 989e12, 4.8e12, 450e9),
        Gpu("b200", 180, 2250e12, 8.0e12, 900e9),
    )
}
