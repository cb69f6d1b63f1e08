"""The base of replicas over HTTP: checks requests, holds them while paused, and sorts errors.

generate ─> checks ─> gate ─> sample() of the engine's class ─> POST ─> Completion
                                                                 ├─ no connection, 5xx: ReplicaDown
                                                                 └─ 4xx: ModelError
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence, Sized
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
from numpy.typing import NDArray

from ajet.core.errors import ConfigError, ModelError
from ajet.core.errors.codes import Code
from ajet.core.images.forms import data_url
from ajet.core.images.image_ids import has_images, with_placeholders
from ajet.core.images.processor import ImageProcessor
from ajet.core.inference.endpoint import Completion, ContextOverflow, SamplingParams
from ajet.core.inference.replica import Gate, ReplicaDown
from ajet.core.model.routes import NUM_EXPERTS_KEYS, Routes, route_dtype
from ajet.core.net.http_client import LimitedAsyncClient
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.group import release_unused_memory
from ajet.core.weight_sync.load import check_tensor
from ajet.core.weight_sync.manifest import Manifest, SyncReport, WeightsError, WeightSource
from ajet.servers.adapters import ServedAdapters
from ajet.servers.process import ServerProcess

CONNECT_S, HEALTH_S = 10.0, 10.0
CONTROL_S, LOAD_S = 300.0, 3600.0
"""Deadlines of control requests: a large model may move to the CPU's memory, or come from a slow
disk."""
ABORT_RETRY_S = 0.5
MAX_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The layers, the experts of a layer, and how many of them a token has."""

    num_layers: int
    num_experts: int
    top_k: int

    @classmethod
    def from_config(cls, model_config: Mapping[str, Any]) -> ExpertShape:
        """Reads a model's `config.json`. Raises ConfigError if the model has no experts."""
        for name in NUM_EXPERTS_KEYS:
            if num_experts := model_config.get(name):
                top_k = model_config["num_experts_per_tok"]
                return cls(model_config["num_hidden_layers"], num_experts, top_k)
        raise ConfigError(
            "ajet.rollout.routing_replay: the model, of type "
            f"{model_config.get('model_type')!r}, has no experts to replay; leave it false",
            code=Code.MODEL_UNSUPPORTED,
        )

    def routes(
        self, returned: NDArray[Any], prompt_ids: Sized, token_ids: Sized, request: str
    ) -> Routes:
        """Returns what a server sent as the experts of a prompt and its reply."""
        num_fed = len(prompt_ids) + len(token_ids) - 1  # the last token was never fed
        shape = (num_fed, self.num_layers, self.top_k)
        if returned.size != math.prod(shape):
            raise ModelError(
                f"{request}: the server returned {returned.size} numbers of experts, not "
                f"{' x '.join(map(str, shape))} (tokens, layers, experts of a token)",
                code=Code.SERVER_REFUSES,
            )
        return returned.reshape(shape).astype(route_dtype(self.num_experts))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a replica needs to know about its server's model."""

    path: str
    vocab_size: int
    max_model_len: int
    stop_token_ids: tuple[int, ...] = ()
    """A reply ends with one of these or of the request's; the server's defaults are not used."""
    has_grammars: bool = False
    """The server restricts replies to grammars."""
    experts: ExpertShape | None = None
    """Set if the server returns the experts of each token."""
    images: ImageProcessor | None = None
    """Set if the server has the vision tower, too."""


class ServerReplica:
    """The base class of replicas over HTTP. `process` is the server if this process started it;
    `adapters` are those for which it was started. Then it gets only their weights, while requests
    run."""

    def __init__(
        self,
        name: str,
        url: str,
        model: ServedModel,
        *,
        process: ServerProcess | None = None,
        version: int = 0,
        adapters: ServedAdapters | None = None,
    ) -> None:
        self.name = name
        self.url = url
        self.version = version
        self.process = process
        self._model, self._adapters = model, adapters
        self._gate = Gate()
        self._probing = asyncio.Lock()  # held during a health check
        self._abort_tasks: set[asyncio.Task[Any]] = set()
        self._memory_unknown = ""  # the error after which the state of its memory is unknown
        self._asleep: set[str] = set()  # released from the device's memory: weights, kv_cache
        # No timeout: a request may take any time, and health checks find a stuck server.
        self._client = LimitedAsyncClient(
            base_url=url,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    async def sample(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Sends one request, which has passed checks and gate. `adapter` is the server's name."""
        raise NotImplementedError

    async def send_abort(self, request_id: str) -> None:
        """Tells the server to end a request."""
        raise NotImplementedError

    async def send_abort_all(self) -> None:
        """Tells the server to end all its current requests."""
        raise NotImplementedError

    async def send_pause(self) -> None:
        """Tells the server, which has no requests, to stop its scheduler."""
        raise NotImplementedError

    async def send_resume(self) -> None:
        """Tells the server to continue."""
        raise NotImplementedError

    async def sleep(self) -> None:
        """Frees the server's memory; requests are held."""
        raise NotImplementedError

    async def send_wake(self, tags: list[str]) -> None:
        """Has the server allocate the memory of these tags again."""
        raise NotImplementedError

    async def warm_up(self) -> None:
        """Samples one token, since a server's first request compiles for seconds."""
        raise NotImplementedError

    async def send_weights(self, source: FolderSource, manifest: Manifest) -> SyncReport:
        """Has the server load weights, already checked and locked, and empty its cache."""
        raise NotImplementedError

    async def send_empty_cache(self) -> None:
        """Has the server, which has no requests, empty its prefix cache."""
        raise NotImplementedError

    async def load_adapter(self, name: str, path: Path) -> None:
        """Has the server load an adapter from a folder; raises WeightsError if it refuses."""
        raise NotImplementedError

    async def unload_adapter(self, name: str) -> None:
        """Has the server unload an adapter that no request uses."""
        raise NotImplementedError

    async def start(self, deadline_s: float) -> None:
        """Starts the server's process and waits until it has sampled a token. After the deadline
        closes the replica and raises ModelError."""
        assert self.process is not None

        async def healthy() -> None:
            await self.health()
            await self.warm_up()

        try:
            await self.process.start(healthy, deadline_s)
        except BaseException:
            await self.close()
            raise

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples like `ModelEndpoint.generate`; waits while paused."""
        max_tokens = self._max_new_tokens(prompt_ids, sampling, request_id)
        if sampling.grammar and not self._model.has_grammars:
            raise ModelError(
                f"{self.name}: a request has a response_format or strict tools: set "
                "ajet.rollout.server.grammars=true",
                code=Code.SERVER_SETTING,
            )
        if not await self._gate.enter(request_id):
            return Completion(tuple(prompt_ids), (), (), "abort", self.version)
        try:
            stops = tuple(sorted({*self._model.stop_token_ids, *sampling.stop_token_ids}))
            max_tokens = min(sampling.max_tokens, max_tokens)
            limited = replace(sampling, max_tokens=max_tokens, stop_token_ids=stops)
            adapters = self._adapters
            if adapters is None or not (sampling.adapter or adapters.base_is_adapter):
                return await self.sample(list(prompt_ids), limited, request_id)
            with adapters.sampling_with(sampling.adapter) as loaded:
                adapter_sampling = replace(limited, adapter=loaded.name)
                reply = await self.sample(list(prompt_ids), adapter_sampling, request_id)
            # The adapter may have been replaced meanwhile, so this is not `self.version`.
            return replace(reply, policy_version=loaded.version)
        finally:
            self._gate.leave(request_id)

    def abort(self, request_id: str) -> None:
        """Ends a request with the tokens so far; does not wait."""
        if not self._gate.give_up(request_id) and request_id in self._gate.inside:

            async def send() -> None:
                # An error does not matter: the request ends anyway, or with its server.
                with suppress(ReplicaDown, ModelError):
                    await self.send_abort(request_id)

            task = asyncio.create_task(send())
            self._abort_tasks.add(task)
            task.add_done_callback(self._abort_tasks.discard)

    def leave(self, episode_id: str) -> None:
        """Does nothing: the server evicts prefixes by itself."""

    async def health(self) -> None:
        """Raises `ReplicaDown` if the process has ended or the server is unhealthy. An idle server
        is not asked, since its control requests have deadlines."""
        if self._memory_unknown:
            raise ReplicaDown(self._memory_unknown)
        if self.process is not None:
            try:
                self.process.check_running()
            except ModelError as error:
                raise ReplicaDown(str(error)) from error
        async with self._probing:
            if self._gate.is_open or self._gate.inside:
                await self.request("GET", "/health", timeout=HEALTH_S)

    async def pause(self, abort: bool = False) -> None:
        """Holds new requests; returns when neither a request nor a health check runs."""
        self._gate.shut()
        while abort and self._gate.inside:  # repeated: a request may arrive after the abort
            await self.send_abort_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(ABORT_RETRY_S):
                    await self._gate.empty()
        await self._gate.empty()
        async with self._probing:  # waits for a health check that has begun
            pass
        await self.send_pause()

    async def resume(self) -> None:
        """Lets held requests run."""
        await self.send_resume()
        self._gate.open()

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Loads weights from a folder that the server can read, after checking their checksums
        here. Waits for running requests. Several adapters may come from any source, and are loaded
        while requests run."""
        if self._adapters is not None:
            report = await self._adapters.publish(source, version, self)
            release_unused_memory()
            self.version = version
            return report
        if not isinstance(source, FolderSource):
            raise WeightsError(
                f"{self.name}: this server takes weights from a folder or a broadcast, not from "
                f"{type(source).__name__}"
            )
        async with self.paused():
            with source.read_lock():
                manifest = await asyncio.to_thread(check_weights, source)  # a second per GB
                report = await self.send_weights(source, manifest)
        self.version = version
        return SyncReport(version, report.seconds, report.num_bytes, report.checksum)

    async def wake(self) -> None:
        """Allocates the memory of the weights, which must be loaded before `resume` unless the
        server has kept a copy. The cache's memory stays free until then, for the load."""
        await self.resume_memory("weights")

    async def resume_memory(self, *tags: str) -> None:
        """Allocates those of these tags that are asleep."""
        if asleep := self._asleep & {*tags}:
            await self.send_wake(sorted(asleep))
            self._asleep -= asleep

    async def empty_cache(self) -> None:
        async with self.paused():  # a server keeps the prefixes that running requests use
            await self.send_empty_cache()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Pauses the replica for the block, unless it is paused already."""
        was_open = self._gate.is_open
        await self.pause()
        try:
            yield
        finally:
            if was_open:
                await self.resume()

    async def close(self) -> None:
        """Closes the connections, and stops the server if this process started it. Running requests
        fail."""
        for task in self._abort_tasks:
            task.cancel()
        await self._client.aclose()
        if self.process is not None:
            await self.process.stop()
        if self._adapters is not None:
            self._adapters.close()

    async def request(
        self, method: str, path: str, *, timeout: float | None = None, **options: Any
    ) -> Any:
        """Sends a request and returns the answer's JSON, or None if it has none."""
        limits = httpx.Timeout(timeout, connect=CONNECT_S)
        try:
            response = await self._client.request(method, path, timeout=limits, **options)
        except httpx.ReadTimeout as error:
            reason = f"no answer within {timeout:g} s"
            raise ReplicaDown(f"{self.name}: {method} {path}: {reason}") from error
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise ReplicaDown(f"{self.name}: {method} {path}: {reason}") from error
        if response.status_code != 200:
            reason = " ".join(response.text.split())[:MAX_ERROR_CHARACTERS]
            line = f"{self.name}: {method} {path}: {response.status_code} {reason}".strip()
            if response.status_code >= 500:
                raise ReplicaDown(line, http_status=response.status_code)
            raise ModelError(line, code=Code.SERVER_REFUSES)
        is_json = "json" in response.headers.get("content-type", "")
        return response.json() if is_json and response.content else None

    async def post(self, path: str, **options: Any) -> Any:
        """Sends a control request. Raises `ReplicaDown` if the server does not answer in time."""
        return await self.request("POST", path, timeout=CONTROL_S, **options)

    async def post_memory_control(self, path: str, **options: Any) -> Any:
        """Sends a control request that frees or allocates memory. A server that does not answer may
        have done so or not, so it stays unhealthy and must be replaced."""
        try:
            return await self.post(path, **options)
        except ReplicaDown as down:
            self._memory_unknown = str(down)
            raise

    def unexpanded(self, prompt_ids: list[int]) -> tuple[list[int], list[str]]:
        """Returns a prompt as the server takes it, and its images as data URLs."""
        images = self._model.images
        if images is None or not has_images(prompt_ids):
            return prompt_ids, []
        ids, keys = images.unexpanded(prompt_ids)
        return ids, [data_url(images.store.get(key).plain) for key in keys]

    def check_expanded(
        self, returned: list[int] | None, prompt_ids: list[int], request_id: str
    ) -> None:
        """Raises ModelError unless the server made the same tokens of the prompt and its images."""
        assert self._model.images is not None
        expected = with_placeholders(prompt_ids, self._model.images.image_token_id)
        if returned == expected:
            return
        problem = "does not return the ids of a prompt with images: install a newer one"
        if returned is not None:
            same = [ours == theirs for ours, theirs in zip(expected, returned, strict=False)]
            place = same.index(False) if False in same else len(same)
            problem = (
                f"made {len(returned)} tokens of a prompt with images, which has {len(expected)} "
                f"here, and they differ from place {place} on; set ajet.rollout.name=in_process"
            )
        raise ModelError(
            f"{self.name}: request {request_id}: the server {problem}", code=Code.SERVER_REFUSES
        )

    def _max_new_tokens(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, request_id: str
    ) -> int:
        """Checks the prompt and returns the number of new tokens that fit after it."""
        vocab_size, max_model_len = self._model.vocab_size, self._model.max_model_len
        # Checked before it is sent: a vLLM server without a tokenizer crashes on an unknown id, and
        # all other requests with it.
        text_ids = prompt_ids
        if self._model.images is not None:
            text_ids = with_placeholders(prompt_ids, self._model.images.image_token_id)
        if not text_ids or min(text_ids) < 0 or max(text_ids) >= vocab_size:
            raise ValueError(
                f"request {request_id!r}: the prompt must be token ids in 0 .. {vocab_size - 1}, "
                "at least one"
            )
        if sampling.max_tokens < 1:
            raise ValueError(f"request {request_id!r}: max_tokens is {sampling.max_tokens}")
        if len(prompt_ids) >= max_model_len:
            raise ContextOverflow(
                f"request {request_id!r}: {len(prompt_ids)} prompt tokens; max_model_len is "
                f"{max_model_len}"
            )
        return max_model_len - len(prompt_ids)


def check_weights(source: FolderSource) -> Manifest:
    """Checks that the weights in a folder are undamaged; returns their manifest."""
    manifest = source.manifest()
    for info, tensor in source.tensors():
        check_tensor(info, tensor, tensor, f"weights of version {source.version}")
    return manifest
