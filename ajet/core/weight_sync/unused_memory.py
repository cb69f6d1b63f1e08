"""Gives back memory of GPUs that this process holds and does not use, to the processes beside it.

A load of weights needs memory for a while, and torch keeps it. An inference server allocates its
cache of keys and values after a load, from what its GPU has free.

This file imports torch alone: vLLM's worker loads it by its path (servers/worker_extension/).
"""


def release_unused_memory() -> None:
    """Gives back what torch keeps, and memory that other processes had open until now."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.ipc_collect()
        torch.cuda.empty_cache()
