"""Functions for tensors that may be sharded over several ranks (sharding.py).

A sharded tensor is a DTensor; every function also takes plain tensors. torch's FSDP is not
imported here: that takes seconds, and a single process does not need it.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def full_tensor(tensor: Tensor) -> Tensor:
    """Returns the whole of a sharded tensor on every rank; all ranks must call it. A shard in CPU
    memory (`cpu_offload`) is gathered on the device of its ranks."""
    if not is_sharded(tensor):
        return tensor
    untyped: Any = tensor
    device = untyped.device_mesh.device_type
    return (untyped if untyped.device.type == device else untyped.to(device)).full_tensor()


def reshard(model: nn.Module) -> None:
    """Frees the parameters that a pass without backward left gathered; they are shards again."""
    for module in model.modules():
        if "run_unsharded" in module.__dict__:
            untyped: Any = module
            untyped.reshard()


def begin_micro_batch(model: nn.Module, *, is_last: bool) -> None:
    """Keeps a sharded model's weights gathered after this micro-batch's passes, and its gradients
    unsharded: they are summed over the ranks once, after the last micro-batch."""
    untyped: Any = model
    untyped.set_reshard_after_forward(False)
    untyped.set_reshard_after_backward(is_last)
    untyped.set_requires_gradient_sync(is_last)


def sum_replicas(gradients: Iterable[Tensor]) -> None:
    """Sums, over the ranks, gradients of weights that are whole on each of them. All must call
    it, with the same weights in the same order."""
    for gradient in gradients:
        torch.distributed.all_reduce(gradient)


@torch.no_grad()
def copy_tensor(target: Tensor, source: Tensor) -> None:
    """Copies `source` into `target`; where only the target is sharded, each rank takes its part."""
    if is_sharded(target) and not is_sharded(source):
        untyped: Any = target
        source, target = _part(untyped, source), untyped.to_local()
    target.copy_(source)


def _part(target: Any, source: Tensor) -> Tensor:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(
        target.shape, target.device_mesh, target.placements
    )
    for dim, (length, start) in enumerate(zip(shape, offset, strict=True)):
        source = source.narrow(dim, start if length else 0, length)
    return source
