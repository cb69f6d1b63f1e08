"""Holds what the vendor's data sheets say of GPUs that people train on.

    GPUS["h100"].flops   989e12   dense bfloat16 products with float32 sums, a second

Sources: NVIDIA's data sheets of A10, A100 (SXM), L4, L40S, H100 (SXM), H200 (SXM) and DGX B200, and
its Ada architecture white paper for the RTX 4090. Numbers "with sparsity" are halved. Not covered:
clocks that a power limit lowers, and GPUs of other makers.
"""

from dataclasses import dataclass

PCIE_4 = 32e9
"""Bytes a second in one direction of sixteen PCIe 4.0 lanes."""


@dataclass(frozen=True)
class Gpu:
    """A GPU's data sheet: memory in GiB, dense bfloat16 FLOP/s, bytes a second of its memory and of
    its link to the other GPUs of a node, in one direction."""

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
