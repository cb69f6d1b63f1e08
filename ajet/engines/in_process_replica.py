"""A replica with a model in this process, for clusters without a GPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.grammar import Grammars
from ajet.core.inference.replica import Gate, ReplicaDown
from ajet.core.weight_sync.load import BaseWeights, load_tensors, load_weights
from ajet.core.weight_sync.manifest import SyncReport, WeightSource
from ajet.engines.in_process import InProcessEngine
from ajet.engines.step_graph import MakeGraph, cuda_graph_of

if TYPE_CHECKING:
    import torch


class InProcessReplica(ModelEndpoint):
    """A `Replica` over an engine in this process, whose model nothing else uses. Requests join a
    running batch (continuous batching)."""

    def __init__(
        self,
        name: str,
        model: Any,
        *,
        stop_token_ids: tuple[int, ...],
        max_num_seqs: int = 256,
        max_model_len: int = 4096,
        decode: Callable[[Sequence[int]], str] | None = None,
        grammars: Grammars | None = None,
        version: int = 0,
        adapters: Mapping[str, Any] | None = None,
        adapter_weights: Mapping[str, torch.Tensor] | None = None,
        make_graph: MakeGraph | None = cuda_graph_of,
        records_routes: bool = False,
        kept_versions: int | None = None,
    ) -> None:
        """`adapters` are models of LoRA adapters over the weights of `model`. With them,
        `load_weights` loads into `adapter_weights` instead of the model. `make_graph` and
        `records_routes` are those of `InProcessEngine`. `kept_versions`: after `load_weights`,
        cached keys and values stay that weights up to this many versions older computed; None:
        none stay."""
        self.name = name
        self.version = version
        self._model, self._base = model, BaseWeights()
        self._device: torch.device = next(model.parameters()).device
        self._make = lambda: InProcessEngine(
            model,
            stop_token_ids=stop_token_ids,
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            deterministic=False,
            decode=decode,
            grammars=grammars,
            adapters=adapters,
            make_graph=make_graph,
            records_routes=records_routes,
            keeps_cache=kept_versions is not None,
        )
        self._kept_versions = kept_versions
        self._adapter_weights = adapter_weights
        self._gate = Gate()
        self._engine: InProcessEngine | None = None
        self._loader = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-weights")
        self._is_closed = False
        self._start_engine()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        if self._is_closed:
            raise ReplicaDown(f"{self.name}: closed")
        if not await self._gate.enter(request_id):
            return Completion(tuple(prompt_ids), (), (), "abort", self.version)
        try:
            if self._engine is None:
                raise ReplicaDown(f"{self.name}: closed")
            return await self._engine.generate(prompt_ids, sampling, request_id)
        except ModelError as error:
            if self._is_closed:
                raise ReplicaDown(f"{self.name}: closed") from error
            raise
        finally:
            self._gate.leave(request_id)

    def abort(self, request_id: str) -> None:
        if not self._gate.give_up(request_id) and self._engine is not None:
            self._engine.abort(request_id)

    def leave(self, episode_id: str) -> None:
        if self._engine is not None:
            self._engine.leave(episode_id)

    async def health(self) -> None:
        if self._is_closed:
            raise ReplicaDown(f"{self.name}: closed")

    async def pause(self, abort: bool = False) -> None:
        self._gate.shut()
        for request_id in self._gate.inside if abort else ():
            self.abort(request_id)
        await self._gate.empty()

    async def resume(self) -> None:
        if self._engine is not None:  # not asleep
            self._gate.open()

    async def sleep(self) -> None:
        await self.pause()
        await self._stop_engine()
        if self._device.type != "cpu":
            import torch

            await self._in_thread(lambda: self._model.to("cpu"))
            torch.cuda.empty_cache()

    async def wake(self) -> None:
        if self._engine is None and not self._is_closed:
            if self._device.type != "cpu":
                await self._in_thread(lambda: self._model.to(self._device))
            self._start_engine()

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Copies the weights in place, in a thread, while no request runs. A sleeping replica can
        be loaded too."""
        was_open = self._gate.is_open
        await self.pause()
        try:
            report = await self._in_thread(lambda: self._load(source))
        finally:
            if was_open:
                self._gate.open()
        self.version = version
        if self._engine is not None:
            kept = self._kept_versions
            self._engine.publish(version, None if kept is None else version - kept)
        return replace(report, version=version)

    def _load(self, source: WeightSource) -> SyncReport:
        if self._adapter_weights is not None:
            return load_tensors(self._adapter_weights, source)
        return load_weights(self._model, source, base=self._base)

    async def empty_cache(self) -> None:
        if self._engine is not None:  # running rows are computed again with the same weights
            self._engine.publish(self.version)

    async def close(self) -> None:
        self._is_closed = True
        await self._stop_engine()
        self._gate.open()  # held requests continue, and fail because the replica is closed
        self._loader.shutdown(wait=False)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        # Not in the loop's thread pool: tools that never end may hold all of its threads.
        return await asyncio.get_running_loop().run_in_executor(self._loader, work)

    def _start_engine(self) -> None:
        self._engine = self._make()
        self._engine.publish(self.version)

    async def _stop_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()
