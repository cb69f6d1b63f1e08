"""Samplers in several processes on Ray. Models are trained in the server's process.

    TinkerService ─sample─> RemoteSamplers ─> SamplerProcess 0     the base, engines for checkpoints
                                           ─> SamplerProcess 1

A process reads a checkpoint from the run folder, which all nodes must see.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.process.processor import num_processors
from ajet.serve.tinker.loading import load_base, make_samplers
from ajet.serve.tinker.messages import SampleRequest

if TYPE_CHECKING:
    from ajet.cluster.actor_pool import ActorPool


class SamplerProcess:
    """The class of a process: a base and its samplers."""

    def __init__(self, config: AjetConfig, num_threads: int) -> None:
        assembly.prepare_torch(config, num_threads)
        self._samplers = make_samplers(config, *load_base(config))

    async def sample(
        self, checkpoint: Path | None, request: SampleRequest, request_id: str, seed: int
    ) -> bytes:
        return await self._samplers.sample(checkpoint, request, request_id, seed)


class RemoteSamplers:
    """Has the interface of `Samplers`."""

    def __init__(self, pool: ActorPool) -> None:
        self._pool = pool

    async def sample(
        self, checkpoint: Path | None, request: SampleRequest, request_id: str, seed: int
    ) -> bytes:
        return await self._pool.call("sample", checkpoint, request, request_id, seed)

    async def close(self) -> None:
        self._pool.close()


def start_samplers(config: AjetConfig) -> RemoteSamplers:
    """Starts `ajet.rollout.n_vllm_engine` processes that sample; with GPUs, each has one."""
    import torch

    from ajet.cluster.actor_pool import ActorPool

    num = config.ajet.rollout.n_vllm_engine or 1
    num_threads = max(1, num_processors() // (num + 1))  # one share is the server's
    num_gpus = int(torch.cuda.is_available() and config.ajet.model.device != "cpu")
    pool = ActorPool(
        SamplerProcess, (config, num_threads), num, num_gpus=num_gpus, name="sampler process"
    )
    return RemoteSamplers(pool)
