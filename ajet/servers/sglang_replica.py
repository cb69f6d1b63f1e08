"""An SGLang server as a replica: token ids to `/generate`, ids and log-probabilities back. SGLang
needs CUDA: on a CPU this file is tested against a fake server with the same API
(tests/sglang_server.py); `benchmarks/sglang_real.py` runs the same tests against a real one.
"""

from __future__ import annotations

import asyncio
import base64
import io
import time
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from loguru import logger

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.weight_sync.broadcast import HandoverReceiver
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.group import portable_handle, release_unused_memory
from ajet.core.weight_sync.load import check_tensor
from ajet.core.weight_sync.manifest import (
    Manifest,
    SyncReport,
    TensorInfo,
    WeightsError,
    WeightSource,
)
from ajet.servers.adapters import ServedAdapters
from ajet.servers.environment import server_package, version_numbers
from ajet.servers.process import ServerProcess
from ajet.servers.replica import LOAD_S, ServedModel, ServerReplica

if TYPE_CHECKING:
    from torch import Tensor

SESSIONS_SINCE = (0, 5, 21)
"""From this version on SGLang takes tensors from memory only within an update session."""
MAX_TOP_K = 4096
"""The largest top_k with log-probabilities after a cut: SGLang's `--sampling-mask-max-tokens`."""
FINISH_REASONS = {"stop", "length", "abort"}
BUCKET_BYTES = 1 << 29
Bucket = list[tuple[TensorInfo, "tuple[Tensor, ...]"]]
"""Tensors of one request, each with its copies on the server's GPUs."""
HANDLE = 7
"""The index of the memory's handle among the arguments of torch's `rebuild_cuda_tensor`."""
FLUSH_S, FLUSH_RETRY_S = 30.0, 0.2
"""How long and how often emptying the cache is tried: a server refuses while a request runs, and
a health check keeps running there after its client has gone."""
MEMORY_TAGS = ("weights", "kv_cache")


class SglangReplica(ServerReplica):
    """A replica over an SGLang server.

    stops            the ids, and `no_stop_trim` keeps the stop token. With `ignore_eos` SGLang
                     would ignore the ids too; without it SGLang also stops at its model's eos, so
                     a reply that ends with one that is not among our ids is an error
    images           `image_data`, and `return_prompt_token_ids` says what it made of them
    weights          `/update_weights_from_disk` from a folder, `/update_weights_from_tensor` from
                     memory of the same device, within a session from 0.5.21 on. This process
                     receives a broadcast and gives the server handles of the tensors
    several adapters a request names one as its `lora_path`
    """

    def __init__(
        self,
        name: str,
        url: str,
        model: ServedModel,
        *,
        process: ServerProcess | None = None,
        version: int = 0,
        adapters: ServedAdapters | None = None,
        num_workers: int = 1,
    ) -> None:
        """`num_workers` is the tensor-parallel size."""
        super().__init__(name, url, model, process=process, version=version, adapters=adapters)
        self._num_workers = num_workers
        # SGLang's checksums are of another layout, so they are compared with each other: our
        # checksum -> the server's for the same weights.
        self._checksums: dict[str, str] = {}
        self._has_checksums = True

    async def check_version(self) -> str:
        """Returns the server's version; raises a ModelError if it is too old."""
        try:
            info = await self.request("GET", "/server_info")
        except ModelError:
            info = await self.request("GET", "/get_server_info")  # its name in older versions
        version = str(info.get("version", "unknown"))
        oldest = server_package("sglang").oldest
        if version_numbers(version) < version_numbers(oldest):
            raise ModelError(
                f"{self.name}: SGLang {version} lets strangers run code in it; install sglang>="
                f"{oldest}",
                code=Code.PACKAGE_VERSION,
            )
        return version

    async def sample(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        version = self.version
        if problem := cut_problem(sampling):
            raise ModelError(
                f"{self.name}: request {request_id}: {problem}", code=Code.SERVER_REFUSES
            )
        ids, images = self.unexpanded(prompt_ids)
        body = request_body(ids, sampling, request_id)
        if images:
            body |= {"image_data": images, "return_prompt_token_ids": True}
        if self._model.experts is not None:
            body |= {"return_routed_experts": True}
        answer = await self.request("POST", "/generate", json=body)
        info = answer["meta_info"]
        reason = (info["finish_reason"] or {}).get("type")
        if reason not in FINISH_REASONS:
            raise ModelError(
                f"{self.name}: request {request_id}: {info['finish_reason']}",
                code=Code.SERVER_REFUSES,
            )
        matched = info["finish_reason"].get("matched")
        if reason == "stop" and matched not in sampling.stop_token_ids:
            raise ModelError(
                f"{self.name}: request {request_id}: SGLang stopped at {matched!r}, which is not "
                f"among the stop tokens {list(sampling.stop_token_ids)}; add it to eos_token_id "
                "of the model's generation_config.json, or remove it from its config.json",
                code=Code.TOKENS_NOT_KNOWN,
            )
        sampled = info.get("output_token_logprobs") or []
        if images and sampled:
            self.check_expanded(answer.get("prompt_token_ids"), prompt_ids, request_id)
        token_ids = tuple(int(token) for _, token, *_ in sampled)
        logprobs = tuple(float(logprob) for logprob, *_ in sampled)
        if has_cut(sampling):
            logprobs = self._logprobs_after_cut(info, len(token_ids))
        routes, sent = None, info.get("routed_experts")  # none if it was aborted in the queue
        if self._model.experts is not None and sent is not None:
            returned = np.frombuffer(base64.b64decode(sent), np.int32)
            request = f"{self.name}: {request_id}"
            routes = self._model.experts.routes(returned, prompt_ids, token_ids, request)
        return Completion(tuple(prompt_ids), token_ids, logprobs, reason, version, routes)

    async def warm_up(self) -> None:
        """Refuses a server that is too old; samples one token."""
        await self.check_version()
        body = request_body([0], SamplingParams(max_tokens=1), "warm-up/0")
        await self.request("POST", "/generate", json=body)

    async def send_abort(self, request_id: str) -> None:
        await self.post("/abort_request", json={"rid": request_id, "abort_all": False})

    async def send_abort_all(self) -> None:
        await self.post("/abort_request", json={"rid": "", "abort_all": True})

    async def send_pause(self) -> None:
        """Does nothing: only this replica sends requests, and it holds them."""

    async def send_resume(self) -> None:
        """Allocates the memory of the cache if it slept; the scheduler was never stopped."""
        await self.resume_memory(*self._asleep)

    async def sleep(self) -> None:
        await self.pause()
        if self._asleep:
            return
        await self.send_empty_cache()
        await self.post_memory_control(
            "/release_memory_occupation", json={"tags": list(MEMORY_TAGS)}
        )
        self._asleep = set(MEMORY_TAGS)

    async def send_wake(self, tags: list[str]) -> None:
        await self.post_memory_control("/resume_memory_occupation", json={"tags": tags})

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Loads weights from a folder, or tensors on the server's device that this process has or
        receives from a broadcast."""
        if self._adapters is not None:
            return await super().load_weights(source, version)
        if source.adapters is not None:
            raise WeightsError(f"{self.name}: an SGLang server cannot merge adapters")
        if isinstance(source, FolderSource):
            return await super().load_weights(source, version)
        async with self.paused():
            report = await self._send_tensors(source)
        self.version = version
        return SyncReport(version, report.seconds, report.num_bytes, report.checksum)

    async def send_weights(self, source: FolderSource, manifest: Manifest) -> SyncReport:
        started = time.perf_counter()
        await self.resume_memory("weights")
        body = {
            "model_path": str(source.path),
            "flush_cache": False,  # flushing a cache that is in use crashes the server
            "weight_version": str(source.version),
        }
        await self._load("/update_weights_from_disk", body)
        await self.send_empty_cache()
        return await self._verified_report(manifest, started)

    async def load_adapter(self, name: str, path: Path) -> None:
        await self.resume_memory("weights")
        await self._load("/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})

    async def unload_adapter(self, name: str) -> None:
        await self._load("/unload_lora_adapter", {"lora_name": name})

    async def _send_tensors(self, source: WeightSource) -> SyncReport:
        started = time.perf_counter()
        await self.resume_memory("weights")
        infos = []
        async with self._update_session():
            with closing(buckets(source)) as bucket_iterator:
                # In a thread: `next` receives tensors and computes their checksums.
                while bucket := await asyncio.to_thread(next, bucket_iterator, None):
                    infos += [info for info, _ in bucket]
                    copies = [
                        serialized_tensors([(info.name, tensors[gpu]) for info, tensors in bucket])
                        for gpu in range(len(bucket[0][1]))
                    ]
                    # One entry for each worker: the tensors on its GPU, or the only ones.
                    copies = copies if len(copies) > 1 else copies * self._num_workers
                    body = {
                        "serialized_named_tensors": copies,
                        "flush_cache": False,
                        "weight_version": str(source.version),
                    }
                    await self._load("/update_weights_from_tensor", body)
        release_unused_memory()
        await self.send_empty_cache()
        return await self._verified_report(Manifest(source.version, tuple(infos)), started)

    @asynccontextmanager
    async def _update_session(self) -> AsyncIterator[None]:
        """Opens an update session for the block if the server needs one."""
        if version_numbers(await self.check_version()) < SESSIONS_SINCE:
            yield
            return
        await self._load("/begin_weight_update", {})
        try:
            yield
        finally:
            await self._load("/end_weight_update", {})

    async def _load(self, path: str, body: dict[str, Any]) -> None:
        try:
            answer = await self.request("POST", path, timeout=LOAD_S, json=body)
        except ModelError as error:
            raise WeightsError(str(error)) from error
        if not answer["success"]:
            reason = answer.get("message") or answer.get("error_message")
            raise WeightsError(f"{self.name}: POST {path}: {reason}")

    async def _verified_report(self, manifest: Manifest, started: float) -> SyncReport:
        """Returns the report of a load. Raises WeightsError unless the server's checksum changes
        exactly when ours does."""
        server_checksum = await self._server_checksum()
        if server_checksum is not None:
            expected = self._checksums.setdefault(manifest.checksum, server_checksum)
            others = {ours: t for ours, t in self._checksums.items() if ours != manifest.checksum}
            if expected != server_checksum or server_checksum in others.values():
                del self._checksums[manifest.checksum]
                raise WeightsError(
                    f"{self.name}: weights of version {manifest.version} did not arrive: the "
                    f"server's checksum is {server_checksum}"
                )
        seconds = time.perf_counter() - started
        return SyncReport(manifest.version, seconds, manifest.num_bytes, manifest.checksum)

    async def _server_checksum(self) -> str | None:
        if not self._has_checksums:
            return None
        try:
            answer = await self.post("/weights_checker", json={"action": "checksum"})
            return str(answer["per_engine_checksum"])
        except (ModelError, KeyError, TypeError):
            self._has_checksums = False
            logger.warning(f"{self.name}: this SGLang has no checksum of its weights")
            return None

    def _logprobs_after_cut(self, info: dict[str, Any], count: int) -> tuple[float, ...]:
        if not count:  # a request that ended before its first token has no entry
            return ()
        logprobs = info.get("output_token_sampling_logprobs")
        if logprobs is None or len(logprobs) != count:
            raise ModelError(
                f"{self.name}: this SGLang gives no log-probabilities after a cut; set top_p: 1.0 "
                "and top_k: -1",
                code=Code.TOKENS_NOT_KNOWN,
            )
        return tuple(map(float, logprobs))

    async def send_empty_cache(self) -> None:
        """Empties the prefix cache; retries while the server is still ending a request."""
        deadline = time.monotonic() + FLUSH_S
        while True:
            try:
                return await self.post("/flush_cache")
            except ModelError as error:
                if time.monotonic() > deadline:
                    raise WeightsError(str(error)) from error
            await asyncio.sleep(FLUSH_RETRY_S)


def has_cut(sampling: SamplingParams) -> bool:
    """Returns whether top_p or top_k exclude tokens. A greedy draw has log-probabilities of the
    whole distribution."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)


def cut_problem(sampling: SamplingParams) -> str:
    """Says why SGLang has no log-probabilities after this cut; "" if it has."""
    if not has_cut(sampling) or 1 <= sampling.top_k <= MAX_TOP_K:
        return ""
    return (
        f"top_p={sampling.top_p:g}, top_k={sampling.top_k}: SGLang gives log-probabilities after a "
        f"cut only with a top_k of 1 to {MAX_TOP_K}; set top_k too, or top_p: 1.0 and top_k: -1"
    )


def request_body(
    prompt_ids: list[int], sampling: SamplingParams, request_id: str
) -> dict[str, Any]:
    sampling_params: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "stop_token_ids": list(sampling.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "sampling_seed": sampling.seed,
    }
    if has_cut(sampling):
        sampling_params |= {"top_p": sampling.top_p, "top_k": sampling.top_k}
    if sampling.grammar:
        # Applied to the logits before anything else, so the log-probabilities are restricted.
        sampling_params |= {"ebnf": sampling.grammar}
    body: dict[str, Any] = {
        "rid": request_id,
        "input_ids": prompt_ids,
        "sampling_params": sampling_params,
        "return_logprob": True,
    }
    if sampling.adapter:
        body |= {"lora_path": sampling.adapter}
    return body | {"return_sampling_mask": True} if has_cut(sampling) else body


def buckets(source: WeightSource) -> Generator[Bucket, None, None]:
    """Yields the tensors in lists of about BUCKET_BYTES, each for one request. Checks tensors from
    another process."""
    bucket: Bucket = []
    size = 0
    prefix = f"weights of version {source.version} (the server may hold a mixture)"
    with closing(copies_of(source)) as incoming:
        for info, tensors in incoming:
            if not source.can_be_read_again:
                for tensor in tensors:
                    check_tensor(info, tensor, tensor, prefix)
            if bucket and size + info.num_bytes > BUCKET_BYTES:
                yield bucket
                bucket, size = [], 0
            bucket.append((info, tensors))
            size += info.num_bytes
    if bucket:
        yield bucket


def copies_of(source: WeightSource) -> Generator[tuple[TensorInfo, tuple[Tensor, ...]], None, None]:
    """Yields each tensor with its copies: one on each of the server's GPUs, or only one."""
    if isinstance(source, HandoverReceiver):
        yield from source.copies()
    else:
        with closing(source.tensors()) as incoming:
            for info, tensor in incoming:
                yield info, (tensor,)


def serialized_tensors(tensors: list[tuple[str, Tensor]]) -> str:
    """Pickles handles of the tensors' memory for SGLang's workers."""
    from collections import ChainMap
    from multiprocessing.reduction import ForkingPickler

    import torch
    import torch.multiprocessing  # registers tensors with the pickler

    buffer = io.BytesIO()
    pickler: Any = ForkingPickler(buffer)
    pickler.dispatch_table = ChainMap({torch.Tensor: reduce_tensor}, pickler.dispatch_table)
    pickler.dump([(name, tensor.detach()) for name, tensor in tensors])
    return base64.b64encode(buffer.getvalue()).decode()


def reduce_tensor(tensor: Tensor) -> tuple[Any, tuple[Any, ...]]:
    """Pickles a tensor like torch, but with a handle that another version of torch can open."""
    from torch.multiprocessing import reductions

    rebuild, arguments = reductions.reduce_tensor(tensor)
    if rebuild is reductions.rebuild_cuda_tensor:
        arguments = with_portable_handle(arguments)
    return rebuild, arguments


def with_portable_handle(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replaces the handle in the arguments of torch's `rebuild_cuda_tensor`."""
    before, handle, after = arguments[:HANDLE], arguments[HANDLE], arguments[HANDLE + 1 :]
    return (*before, portable_handle(handle), *after)
