"""Frees GPU memory that torch has cached, for other processes on the same GPU.

A load of weights needs memory for a while. An inference server allocates its KV cache after a load,
from the free memory of the GPU. This file imports only torch: vLLM's worker loads it by path.
"""


def release_unused_memory() -> None:
    """Frees torch's cache, and memory that other processes had open."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
