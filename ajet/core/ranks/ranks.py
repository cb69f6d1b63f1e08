"""The ranks that train together; an update depends on their number only through this interface.
Each has all samples of a step and makes its own passes over its micro-batches; denominators are
those of all ranks, and gradients and metrics add up to one step.
"""

from __future__ import annotations

import os
from copy import copy
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from ajet.core.config import AjetConfig
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.model.load import resolve_device
from ajet.core.net.rendezvous import join, listen
from ajet.core.ranks.sequence import SequenceGroup
from ajet.core.ranks.settings import ShardingSettings
from ajet.core.ranks.shards import begin_micro_batch

CONNECT_TIMEOUT_S = 600.0


class Ranks:
    """Connects an update with the processes that train together; here, a process that trains alone.

    `dp_size` is the number of data-parallel groups, to which the micro-batches of a mini-batch are
    distributed, and `dp_rank` is this rank's; the ranks of one `sequence` have the same `dp_rank`.
    `compute_dtype` is the dtype of weights in a pass, or None if they are not cast."""

    rank = 0
    size = 1
    dp_rank = 0
    dp_size = 1
    sequence: SequenceGroup | None = None
    compute_dtype: torch.dtype | None = None
    group: dist.ProcessGroup | None = None  # of `all_gather`; None: torch.distributed's default

    def device(self, model: nn.Module) -> torch.device:
        """Returns the device on which this rank computes."""
        return next(model.parameters()).device

    def shard(self, model: nn.Module) -> None:
        """Shards the model in place; all ranks call it, in the same order."""

    def begin_micro_batch(self, model: nn.Module, *, is_last: bool) -> None:
        """Must be called before each micro-batch of an optimizer step; all ranks have the same
        number of micro-batches."""

    def apart(self) -> Ranks:
        """Returns these ranks with a group of their own for `all_gather`, which another thread may
        call while an update runs. All ranks must call it."""
        return self

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks, in the order of ranks."""
        return [value]

    def all_reduce_sum(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the sum of the values of all ranks."""
        return values


ONE_RANK = Ranks()


class TorchRanks(Ranks):
    """The processes of torch.distributed's default group (`connect`), with sharded weights and, if
    configured, long sequences divided among several of them."""

    def __init__(
        self, settings: ShardingSettings | None = None, device: torch.device | None = None
    ) -> None:
        self.settings = settings or ShardingSettings()
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.compute_dtype = getattr(torch, self.settings.param_dtype)
        self._device = device or torch.device("cpu")
        self._mesh = init_device_mesh(self._device.type, (self.size,))
        width = self.settings.ulysses_sequence_parallel_size
        if self.size % width:
            raise ConfigError(
                f"ulysses_sequence_parallel_size={width}: does not divide the number of trainer "
                f"ranks ({self.size})",
                code=Code.PARALLEL_SIZE,
            )
        self.dp_size, self.dp_rank = self.size // width, self.rank // width
        self.sequence = SequenceGroup.of(self._device.type, self.size, width)

    def device(self, model: nn.Module) -> torch.device:
        return self._device

    def shard(self, model: nn.Module) -> None:
        from ajet.core.ranks.sharding import shard_model  # torch's FSDP takes seconds to import

        shard_model(model, self._mesh, self.settings)

    def begin_micro_batch(self, model: nn.Module, *, is_last: bool) -> None:
        if self.settings.keep_gathered:
            begin_micro_batch(model, is_last=is_last)

    def apart(self) -> Ranks:
        ranks: Any = copy(self)
        ranks.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=CONNECT_TIMEOUT_S))
        return ranks

    def all_gather(self, value: Any) -> list[Any]:
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value, group=self.group)
        return gathered

    def all_reduce_sum(self, values: NDArray[Any]) -> NDArray[Any]:
        total = torch.from_numpy(np.ascontiguousarray(values).copy())
        dist.all_reduce(total)
        return total.numpy()


def join_ranks(config: AjetConfig, rank: int, size: int, *, host: str, port: int) -> Ranks:
    """Joins the `size` processes that train together; returns when all are there."""
    device = resolve_device(config.ajet.model.device)
    if size == 1 and device.type == "cpu":
        return ONE_RANK
    connect(rank, size, host=host, port=port, device=device.type)
    return TorchRanks(ShardingSettings.from_config(config), device)


def connect(
    rank: int,
    size: int,
    *,
    host: str,
    port: int,
    device: str = "cpu",
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> None:
    """Joins the default group; returns when all processes have joined. Rank 0 listens at `host`."""
    # Python objects and NumPy arrays are exchanged over gloo also where tensors are on GPUs.
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        meet = listen if rank == 0 else join
        dist.init_process_group(
            backend,
            store=meet(host, port, size, timeout_s),
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "by default that of the machine's name")
        raise ConfigError(
            f"trainer rank {rank} of {size} could not join the others at {host}:{port} ({reason}); "
            "the port must be free on rank 0's machine, all ranks must start, and the interface of "
            f"each (GLOO_SOCKET_IFNAME: {interface}) must reach the others",
            code=Code.RANKS_NOT_JOINED,
        ) from error


def disconnect() -> None:
    """Leaves the default group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
