"""The trainer clients of explorer and trainer in one process: a learner and an engine.

    learner ── weights ──> engine ── requests of the explorer's episodes

With a bound of 0 the engine uses the learner's own weights, and the update runs on the event loop,
so no episode runs meanwhile. Otherwise the engine is a replica with weights of its own and the
update runs in a thread. Before new weights are loaded, requests that run are waited for, but not
their episodes; requests that come meanwhile wait.

Not covered: other processes and devices (ajet/cluster).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import ModelEndpoint
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.learner import Learner, TrainBatch
from ajet.core.trajectory.trajectory import Group
from ajet.core.weight_sync.live import LiveSource

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.engines.in_process import InProcessEngine
    from ajet.core.inference.replicas.in_process import InProcessReplica
    from ajet.core.model.load import LoadedModel


class SharedTrainerClient:
    """A learner whose engine samples with the same weights that it updates."""

    def __init__(self, learner: Learner | AdapterLearners, engine: InProcessEngine) -> None:
        self.learner, self._engine = learner, engine
        self.endpoint: ModelEndpoint = engine
        self.on_progress: Callable[[float], None] = lambda fraction: None

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return train(self.learner, step, groups, self.on_progress)

    async def publish(self, version: int) -> Mapping[str, float]:
        self._engine.publish(version)
        return {}

    async def empty_cache(self) -> None:
        """Forgets every cached prefix."""
        self._engine.publish(self._engine.policy_version)

    async def close(self) -> None:
        await self._engine.close()


class ReplicaTrainerClient:
    """A learner, and a replica that samples with weights of its own during updates. Its methods do
    what those of `SharedTrainerClient` do."""

    def __init__(self, learner: Learner | AdapterLearners, replica: InProcessReplica) -> None:
        self.learner, self._replica = learner, replica
        self.endpoint: ModelEndpoint = replica
        self.on_progress: Callable[[float], None] = lambda fraction: None

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return await asyncio.to_thread(train, self.learner, step, groups, self.on_progress)

    async def publish(self, version: int) -> Mapping[str, float]:
        started_s = time.monotonic()
        await self._replica.load_weights(LiveSource(version, self.learner.weights), version)
        return {"sync/seconds": time.monotonic() - started_s}

    async def empty_cache(self) -> None:
        await self._replica.empty_cache()

    async def close(self) -> None:
        await self._replica.close()


def train(
    learner: Learner | AdapterLearners,
    step: int,
    groups: Sequence[Group],
    on_progress: Callable[[float], None],
) -> tuple[TrainBatch, dict[str, float]]:
    """Computes one update; returns its batch and its metrics."""
    batch = learner.make_batch(learner.score(groups))
    return batch, learner.update(step, batch, on_progress=on_progress)


def make_trainer_client(
    config: AjetConfig, loaded: LoadedModel, template: ChatTemplate
) -> SharedTrainerClient | ReplicaTrainerClient:
    """Makes the learner of `loaded`, and an engine for the explorer."""
    if config.has_several_adapters:
        raise ConfigError(
            "ajet.trainer_common.lora.adapters: backbone trinity in one process trains one adapter "
            "for all calls: take backbone debug, or Ray",
            code=Code.KEYS_CONFLICT,
        )
    learner = assembly.make_learner(config, loaded)
    if config.max_staleness == 0:
        return SharedTrainerClient(learner, assembly.make_engine(config, loaded, template))
    # Its engine has no waves: with them, quick episodes would wait for the tools of slow ones.
    return ReplicaTrainerClient(learner, assembly.make_replica(config, "engine"))
