"""Chooses and runs the engine of backbone debug, as `rollout.name` says. Runs with a server are not
bit-identical when they are resumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from loguru import logger

from ajet import assembly
from ajet.cluster.weight_store import make_weight_store, remove_weight_store
from ajet.core.config import AjetConfig
from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.learning.adapter_learners import AdapterLearners
from ajet.core.model.load import resolve_device
from ajet.core.model.save import model_files
from ajet.core.record.run_folder import RunFolder, shown_path
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.load import LiveSource
from ajet.servers.serving import EngineName, ServerSpec, engine_of_one_process, start_server

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.replica import Replica
    from ajet.core.learning.learner import Learner
    from ajet.core.model.load import LoadedModel
    from ajet.engines.in_process import InProcessEngine
    from ajet.servers.environment import ServerName

SERVER = "inference server"


class SharedSampling:
    """Samples with the in-process engine over the policy's weights, which change in place."""

    def __init__(self, engine: InProcessEngine) -> None:
        self.endpoint = engine

    async def start(self, version: int) -> None:
        """Prepares for sampling with the policy's weights, which have this version."""
        if version:
            self.endpoint.publish(version)

    async def sleep(self) -> None:
        """Frees memory for the update: the cache, which the next `publish` would drop anyway."""
        await self.empty_cache()

    async def publish(self, version: int) -> dict[str, float]:
        """Gives the engine the policy's weights of this version; returns metrics of the sync."""
        self.endpoint.publish(version)
        return {}

    async def empty_cache(self) -> None:
        self.endpoint.publish(self.endpoint.policy_version)

    async def close(self) -> None:
        """Closes the engine; running requests fail."""
        await self.endpoint.close()


class ServedEndpoint(ModelEndpoint):
    """Sends requests to the replica of a server that has started."""

    replica: Replica

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        return await self.replica.generate(prompt_ids, sampling, request_id)

    def abort(self, request_id: str) -> None:
        self.replica.abort(request_id)

    def leave(self, episode_id: str) -> None:
        self.replica.leave(episode_id)


class ServerSampling:
    """Samples with one server, which starts with the policy's weights and ends with the run. It has
    the methods of `SharedSampling`. Weights reach it through files in shared memory, as on backbone
    verl; during an update it frees its memory on a GPU. Where several adapters learn, it gets the
    base weights once and then adapters only."""

    def __init__(
        self,
        config: AjetConfig,
        folder: RunFolder,
        engine: ServerName,
        loaded: LoadedModel,
        learner: Learner | AdapterLearners,
        template: ChatTemplate,
    ) -> None:
        self.endpoint = ServedEndpoint()
        self._config, self._learner = config, learner
        self._has_several = config.has_several_adapters
        self._engine: ServerName = engine
        self._ends, self._images = template.stop_token_ids, template.images
        self._log = folder.logs / f"{engine}.log"
        self._root = make_weight_store(folder.path, in_memory=True)
        sees = learner.policy.sends_tower = loaded.vision is not None
        self._weights = WeightFolder.for_model(self._root, model_files(loaded, is_whole=sees))
        self._is_started = False

    async def start(self, version: int) -> None:
        """Starts the server and waits until it is healthy."""
        policy = self._learner.policy
        on_gpu = policy.device.type == "cuda"
        weights = self._weights.write(version, policy.weights(is_base=self._has_several))
        spec = ServerSpec(self._engine, on_gpu, weights, self._ends)
        logger.info(f"starting {self._engine}; it writes into {shown_path(self._log)}")
        with self._server_errors():
            self.endpoint.replica = await start_server(
                self._config, spec, name=SERVER, log_path=self._log, images=self._images
            )
            self._is_started = True
            if self._has_several:  # the files that the server started with hold only the base
                adapters = LiveSource(version, self._learner.weights)
                await self.endpoint.replica.load_weights(adapters, version)

    async def sleep(self) -> None:
        with self._server_errors():
            await self.endpoint.replica.sleep()

    async def publish(self, version: int) -> dict[str, float]:
        """Wakes the server and has it load the weights from checksummed files."""
        replica = self.endpoint.replica
        if self._has_several:
            weights = LiveSource(version, self._learner.weights)
        else:
            weights = self._weights.write(version, self._learner.weights())
        with self._server_errors():
            await replica.wake()
            report = await replica.load_weights(weights, version)
            await replica.resume()
        return {"sync/seconds": report.seconds, "sync/bytes": float(report.num_bytes)}

    async def empty_cache(self) -> None:
        with self._server_errors():
            await self.endpoint.replica.empty_cache()

    async def close(self) -> None:
        try:
            if self._is_started:
                await self.endpoint.replica.close()
        finally:
            remove_weight_store(self._root)

    @contextmanager
    def _server_errors(self) -> Iterator[None]:
        """Turns the server's death into one line. It is a `ModelError` and not a `RunFailed`, after
        which a checkpoint would be saved: the policy may be in the middle of a step."""
        try:
            yield
        except ReplicaDown as down:
            raise ModelError(
                f"{down}; see {shown_path(self._log)}. Run the same command again to continue from "
                "the last checkpoint",
                code=Code.ENGINE_FAILED,
            ) from down


def chosen_engine(config: AjetConfig) -> EngineName:
    """Returns the engine that the config names, if this machine has it. A run that samples nothing
    needs no server."""
    if not config.samples:
        return "in_process"
    on_gpu = resolve_device(config.ajet.model.device).type == "cuda"
    engine, notice = engine_of_one_process(config, on_gpu=on_gpu)
    if notice is not None:
        logger.warning(notice)
    return engine


def make_sampling(
    config: AjetConfig,
    folder: RunFolder,
    engine: EngineName,
    loaded: LoadedModel,
    learner: Learner | AdapterLearners,
    template: ChatTemplate,
) -> SharedSampling | ServerSampling:
    """Makes the engine over the learner's policy. Does not start a server yet."""
    if engine == "in_process":
        return SharedSampling(
            assembly.make_engine(config, loaded, template, adapters=learner.models)
        )
    return ServerSampling(config, folder, engine, loaded, learner, template)
