"""Shards a model with torch's FSDP2: a group for each decoder layer, and one for the rest.

    between passes    a layer's weights   [rank 0 | rank 1 | rank 2 | rank 3]    float32 masters
    its own pass      gathered, in `param_dtype`; resharded after it
    gradients         summed in float32 (the loss has the denominators of all), sharded again

With `keep_gathered` a layer's weights stay gathered from the first micro-batch of an optimizer step
to the last, and gradients are summed over the ranks once (`begin_micro_batch`).

The flat forward (model/decoder.py) calls parts of a layer without the layer's own forward, which
FSDP's hooks are attached to. So each sharded module has a method `run_unsharded`, registered with
FSDP, through which the flat forward computes.
Transformers' own forward finds the hooks by itself.

Rank 0 alone has read the model; the others' tensors are on torch's meta device, without memory. A
group's tensors go from rank 0 to all before it is sharded, so that each rank keeps its shards of
them, and no more than one group is whole on a GPU or in another rank's CPU memory. There it is
converted to float32 or wider.

Not covered: tensor and expert parallelism; a second copy of the shards on another node (HSDP).
"""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from loguru import logger
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.model.decoder import decoder_layers
from ajet.core.model.precision import to_wide_dtype, wide_dtype
from ajet.core.update.settings import ShardingSettings
from ajet.core.update.shards import is_sharded


def shard_model(model: nn.Module, mesh: DeviceMesh, settings: ShardingSettings) -> None:
    """Shards the model in place; all ranks get rank 0's weights.

    The weights become shards of float32, or of float64 if they are; a module named `head` also
    computes in that type.
    """
    layers = decoder_layers(model)
    options = _options(mesh, settings)
    full_precision = options | {"mp_policy": MixedPrecisionPolicy()}
    for layer in layers:
        _shard(layer, settings.reshard_after_forward, options)
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear):
        _shard(head, settings.reshard_after_forward, full_precision)
    # The rest stays gathered from its forward to the end of the backward, because the output layer
    # is called after the model's forward.
    _shard(model, False, options)


def _options(mesh: DeviceMesh, settings: ShardingSettings) -> dict[str, Any]:
    dtype = getattr(torch, settings.param_dtype)
    options: dict[str, Any] = {
        "mesh": mesh,
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=wide_dtype(dtype)),
    }
    if settings.cpu_offload and mesh.device_type == "cpu":
        logger.info("fsdp.cpu_offload: the ranks compute on the CPU, where the weights are already")
    elif settings.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy()
    return options


def _shard(module: nn.Module, reshard_after: bool, options: Any) -> None:
    _receive(module, options["mesh"])
    _to_wide_dtype(module)
    fully_shard(module, reshard_after_forward=reshard_after, **options)
    assert isinstance(module, FSDPModule)
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
    untyped: Any = module
    untyped.run_unsharded = MethodType(_run, module)
    register_fsdp_forward_method(module, "run_unsharded")


@torch.no_grad()
def _receive(module: nn.Module, mesh: DeviceMesh) -> None:
    """Gives all ranks rank 0's tensors, of those in the module that are not sharded yet."""
    if mesh.size() == 1:
        return
    device = torch.device(mesh.device_type)
    given = _tensors(module)
    described: list[Any] = [None] * mesh.size()
    dist.all_gather_object(described, [(n, tuple(t.shape)) for n, t in given.items()])
    for rank, other in enumerate(described):
        if other != described[0]:
            raise ConfigError(
                f"trainer rank {rank} has made another model than rank 0: all machines need the "
                "same files of ajet.model.path and the same versions of transformers and peft",
                code=Code.PROJECT_NOT_ON_NODE,
            )
    dtypes = [[tensor.dtype for tensor in given.values()]]
    dist.broadcast_object_list(dtypes, 0, device=torch.device("cpu"))
    received: dict[int, Tensor] = {}
    for dtype, tensor in zip(dtypes[0], given.values(), strict=True):
        if mesh.get_rank() == 0:
            whole = tensor.data.to(device).contiguous()
        else:
            whole = torch.empty(tensor.shape, dtype=dtype, device=device)
        dist.broadcast(whole, 0)
        if isinstance(tensor, nn.Parameter):
            whole = nn.Parameter(whole, requires_grad=tensor.requires_grad)
        received[id(tensor)] = whole
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for name, tensor in tensors.items():
                if id(tensor) in received:
                    tensors[name] = received[id(tensor)]  # type: ignore[assignment]


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors that are not sharded yet, tied ones once, in an order that all ranks
    have."""
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in named if not is_sharded(tensor)}


@torch.no_grad()
def _to_wide_dtype(module: nn.Module) -> None:
    """Converts what is not sharded yet to float32 or wider."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point() and not is_sharded(tensor):
            tensor.data = to_wide_dtype(tensor.data)


def _run(module: nn.Module, compute: Callable[..., Tensor], *args: Any) -> Tensor:
    return compute(*args)
