"""Shards a model with torch's FSDP2: a group for each decoder layer, and one for the rest. The
shards are float32 masters; a pass gathers a layer's weights in `param_dtype`. Gradients are summed
in float32 (denominators are those of all ranks) and sharded again. Only rank 0 reads the model;
other ranks' tensors are on torch's meta device, and one group at a time goes from rank 0 to all.
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

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.model.decoder import decoder_layers
from ajet.core.model.precision import to_wide_dtype, wide_dtype
from ajet.core.model.vision import visions_in
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.ranks.shards import is_sharded


def shard_model(model: nn.Module, mesh: DeviceMesh, settings: ShardingSettings) -> None:
    """Shards the model in place; all ranks get rank 0's weights, in float32 or wider. A module
    named `head` (the critic's) also computes in that dtype."""
    layers = decoder_layers(model)
    options = _options(mesh, settings) | {"ignored_params": _replicate_towers(model, mesh)}
    full_precision = options | {"mp_policy": MixedPrecisionPolicy()}
    for layer in layers:
        _shard(layer, settings.reshard_after_forward, options)
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear):
        _shard(head, settings.reshard_after_forward, full_precision)
    # The rest stays gathered from its forward to the end of the backward: the layouts call the
    # output layer after the model's forward has returned.
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


def _replicate_towers(model: nn.Module, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Gives every rank the whole of the model's vision tower, if it has one; returns its weights,
    which are not sharded: every rank encodes other images, so not all run it equally often."""
    weights: set[nn.Parameter] = set()
    for vision in visions_in(model):
        tower = vision.tower()
        _receive(tower, mesh, set())
        weights.update(tower.to(mesh.device_type).parameters())
    return weights


def _shard(module: nn.Module, reshard_after: bool, options: Any) -> None:
    replicas: set[nn.Parameter] = options["ignored_params"]
    _receive(module, options["mesh"], replicas)
    _to_wide_dtype(module, replicas)
    fully_shard(module, reshard_after_forward=reshard_after, **options)
    assert isinstance(module, FSDPModule)
    # FSDP averages gradients by default; the loss is already divided by all ranks' denominators.
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
    # The flat forward (model/decoder.py) calls parts of a layer, not its forward, which has FSDP's
    # hooks. So it computes through this method, which gathers the weights too.
    untyped: Any = module
    untyped.run_unsharded = MethodType(_run, module)
    register_fsdp_forward_method(module, "run_unsharded")


@torch.no_grad()
def _receive(module: nn.Module, mesh: DeviceMesh, replicas: set[nn.Parameter]) -> None:
    """Replaces the module's tensors that are neither sharded yet nor replicas by rank 0's."""
    if mesh.size() == 1:
        return
    device = torch.device(mesh.device_type)
    by_name = _tensors(module, replicas)
    described: list[Any] = [None] * mesh.size()
    dist.all_gather_object(described, [(n, tuple(t.shape)) for n, t in by_name.items()])
    for rank, description in enumerate(described):
        if description != described[0]:
            raise ConfigError(
                f"trainer rank {rank} and rank 0 have made different models: all machines need the "
                "same files of ajet.model.path and the same versions of transformers and peft",
                code=Code.PROJECT_NOT_ON_NODE,
            )
    dtypes = [[tensor.dtype for tensor in by_name.values()]]
    dist.broadcast_object_list(dtypes, 0, device=torch.device("cpu"))
    received: dict[int, Tensor] = {}
    for dtype, tensor in zip(dtypes[0], by_name.values(), strict=True):
        if mesh.get_rank() == 0:
            whole = tensor.data.to(device).contiguous()
        else:
            whole = torch.empty(tensor.shape, dtype=dtype, device=device)
        dist.broadcast(whole, 0)
        if isinstance(tensor, nn.Parameter):
            whole = nn.Parameter(whole, requires_grad=tensor.requires_grad)
        received[id(tensor)] = whole
    # A tied tensor was received once and is put into every place that held it.
    for owner in module.modules():
        for tensors in (owner._parameters, owner._buffers):
            for name, tensor in tensors.items():
                if id(tensor) in received:
                    tensors[name] = received[id(tensor)]  # type: ignore[assignment]


def _tensors(module: nn.Module, replicas: set[nn.Parameter]) -> dict[str, Tensor]:
    """Returns the tensors that are neither sharded yet nor replicas, tied ones once, in the same
    order on all ranks."""
    pairs = (*module.named_parameters(), *module.named_buffers())
    return {name: each for name, each in pairs if not is_sharded(each) and each not in replicas}


@torch.no_grad()
def _to_wide_dtype(module: nn.Module, replicas: set[nn.Parameter]) -> None:
    """Converts what is neither sharded yet nor a replica to float32 or wider."""
    for tensor in _tensors(module, replicas).values():
        if tensor.is_floating_point():
            tensor.data = to_wide_dtype(tensor.data)


def _run(module: nn.Module, compute: Callable[..., Tensor], *args: Any) -> Tensor:
    return compute(*args)
