"""The trainer clients of explorer and trainer in one process: a learner and an engine.

    learner ── weights ──> engine ── requests of the explorer's episodes

With a bound of 0 the engine uses the learner's own weights, and the update runs on the event loop,
so no episode runs meanwhile. Otherwise the engine has a copy of the weights and the update runs in
a thread. Before new weights are copied, requests that run are waited for, but not their episodes;
requests that come meanwhile wait.

Not covered: other processes and devices (ajet/cluster).
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ajet import assembly
from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.gate import Gate
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.learning.learner import Learner, TrainBatch
from ajet.core.trajectory.trajectory import Group

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.engines.in_process import InProcessEngine
    from ajet.core.model.load import LoadedModel


class SharedTrainerClient:
    """A learner whose engine samples with the same weights that it updates."""

    def __init__(self, learner: Learner | AdapterLearners, engine: InProcessEngine) -> None:
        self.learner, self.engine = learner, engine
        self.on_progress: Callable[[float], None] = lambda fraction: None

    @property
    def endpoint(self) -> InProcessEngine | GatedEngine:
        return self.engine

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return self._train(step, groups)

    async def publish(self, version: int) -> Mapping[str, float]:
        self.engine.publish(version)
        return {}

    async def close(self) -> None:
        await self.engine.close()

    async def cross_entropy(self, groups: Sequence[Group]) -> float:
        """Returns the mean cross-entropy of the groups' given tokens."""
        return self.learner.cross_entropy(groups)

    def _train(self, step: int, groups: Sequence[Group]) -> tuple[TrainBatch, dict[str, float]]:
        batch = self.learner.make_batch(self.learner.score(groups))
        return batch, self.learner.update(step, batch, on_progress=self.on_progress)


class CopyTrainerClient(SharedTrainerClient):
    """A learner, and an engine that samples with a copy of its weights during updates."""

    def __init__(
        self,
        learner: Learner | AdapterLearners,
        engine: InProcessEngine,
        source: PreTrainedModel,
        target: PreTrainedModel,
    ) -> None:
        """`source` is the learner's model, `target` the engine's."""
        super().__init__(learner, engine)
        self._source, self._target, self._gated = source, target, GatedEngine(engine)

    @property
    def endpoint(self) -> GatedEngine:
        return self._gated

    async def train(
        self, step: int, groups: Sequence[Group]
    ) -> tuple[TrainBatch, dict[str, float]]:
        return await asyncio.to_thread(self._train, step, groups)

    async def publish(self, version: int) -> Mapping[str, float]:
        started_s = time.monotonic()
        gate = self._gated.gate
        gate.shut()
        await gate.empty()
        try:
            await asyncio.to_thread(self._target.load_state_dict, self._source.state_dict())
            self.engine.publish(version)
        finally:
            gate.open()
        return {"sync/seconds": time.monotonic() - started_s}


class GatedEngine(ModelEndpoint):
    """An endpoint that holds requests while its gate is shut."""

    def __init__(self, engine: InProcessEngine) -> None:
        self._engine, self.gate = engine, Gate()

    def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    def leave(self, episode_id: str) -> None:
        self._engine.leave(episode_id)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        await self.gate.enter(request_id)  # held requests are never given up here
        try:
            return await self._engine.generate(prompt_ids, sampling, request_id)
        finally:
            self.gate.leave(request_id)


def make_trainer_client(
    config: AjetConfig, loaded: LoadedModel, template: ChatTemplate
) -> SharedTrainerClient:
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
    own = replace(loaded, model=copy.deepcopy(loaded.model))
    # With waves, quick episodes would wait for the tools of slow ones.
    engine = assembly.make_engine(config, own, template, deterministic=False)
    return CopyTrainerClient(learner, engine, loaded.model, own.model)
