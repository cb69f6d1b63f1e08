"""A vLLM server as a replica: token ids to `/v1/completions`, ids and log-probabilities back."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.weight_sync.broadcast import BroadcastReceiver, HandoverReceiver
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.manifest import Manifest, SyncReport, WeightsError, WeightSource
from ajet.servers.adapters import ServedAdapters
from ajet.servers.process import ServerProcess
from ajet.servers.replica import LOAD_S, ServedModel, ServerReplica

UNAVAILABLE = 503
"""vLLM 0.33's answer to a request that arrives while it is paused."""
FINISH_REASONS = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmReplica(ServerReplica):
    """A replica over a vLLM server.

    temperature, cut  the server's `--logprobs-mode processed_logprobs`: log-probabilities of the
                      distribution drawn from, at temperature 1 for greedy ones
    stops             `ignore_eos` and the ids, so that a reply ends where it does in our engine
    images            `/inference/v1/generate` of --enable-scale-out, which returns the prompt's ids
    abort, pause      the sampled tokens come back with finish_reason "abort"
    weights           our worker extension (worker_extension/) reads a folder in place, or takes
                      part in a broadcast; a single adapter is merged with the first weights
    experts           `--enable-return-routed-experts`: an array in numpy's format, in base64
    several adapters  a request names one as its model (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)
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
        sleep_mode: bool = False,
    ) -> None:
        """Without `sleep_mode`, which vLLM has only on GPUs, `sleep` only empties the cache."""
        super().__init__(name, url, model, process=process, version=version, adapters=adapters)
        self._sleep_mode = sleep_mode
        self._has_weights = True

    async def sample(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        version, model = self.version, sampling.adapter or self._model.path
        ids, images = self.unexpanded(prompt_ids)
        if images:
            path, body = "/inference/v1/generate", image_request_body(model, ids, images, sampling)
        else:
            path, body = "/v1/completions", request_body(model, ids, sampling)
        try:
            answer = await self.request(
                "POST", path, json=body, headers={"X-Request-Id": request_id}
            )
        except ReplicaDown as down:
            if self._gate.is_open or down.http_status != UNAVAILABLE:
                raise
            # It arrived just after `pause`, so nothing was sampled.
            return Completion(tuple(prompt_ids), (), (), "abort", version)
        (choice,) = answer["choices"]
        if choice["finish_reason"] not in FINISH_REASONS:
            raise ModelError(
                f"{self.name}: request {request_id}: {choice['finish_reason']}",
                code=Code.SERVER_REFUSES,
            )
        token_ids = tuple(choice["token_ids"] or ())
        told = choice["logprobs"] or {}
        logprobs = told.get("token_logprobs") or ()
        if images and token_ids:
            self.check_expanded(answer.get("prompt_token_ids"), prompt_ids, request_id)
            logprobs = [each["logprob"] for each in told.get("content") or ()]
        routes, sent = None, choice.get("routed_experts")  # none if it was aborted in the queue
        if self._model.experts is not None and sent is not None:
            returned = np.load(io.BytesIO(base64.b64decode(sent)), allow_pickle=False)
            request = f"{self.name}: {request_id}"
            routes = self._model.experts.routes(returned, prompt_ids, token_ids, request)
        return Completion(
            prompt_ids=tuple(prompt_ids),
            token_ids=token_ids,
            logprobs=tuple(logprobs),
            finish_reason=choice["finish_reason"],
            policy_version=version,
            routes=routes,
        )

    async def warm_up(self) -> None:
        await self.sample([0], SamplingParams(max_tokens=1), "warm-up/0")

    async def send_abort(self, request_id: str) -> None:
        # The server adds a prefix for the endpoint and a suffix for the prompt's number. Which
        # endpoint it was depends on the prompt, and an unknown id is ignored.
        names = [f"cmpl-{request_id}-0"]
        if self._model.images is not None:
            names.append(f"generate-tokens-{request_id}")
        await self.post("/abort_requests", json={"request_ids": names})

    async def send_abort_all(self) -> None:
        """Ends all requests. A later one is refused (vLLM 0.33), or waits in the server until the
        next call ends it (0.26 to 0.32)."""
        await self._pause("abort")

    async def send_pause(self) -> None:
        """Stops the scheduler. Nothing runs, since only this replica sends requests."""
        await self._pause("wait")

    async def send_resume(self) -> None:
        """Allocates the memory of the cache if it slept, and starts the scheduler. Raises
        WeightsError if no weights were loaded since a sleep that dropped them."""
        if not self._has_weights:
            raise WeightsError(f"{self.name}: it dropped its weights in its sleep; load some first")
        await self.resume_memory(*self._asleep)
        await self.post("/resume")

    async def sleep(self) -> None:
        """Frees the cache and, with sleep mode, the weights."""
        await self.pause()
        if not self._sleep_mode:
            await self.send_empty_cache()
        elif not self._asleep:
            # New weights are loaded before it resumes, so a copy is needed only of the base of
            # several adapters. Level 1 keeps one in the CPU's memory.
            keeps_copy = self._adapters is not None
            await self.post_memory_control("/sleep", params={"level": 1 if keeps_copy else 2})
            self._asleep, self._has_weights = {"weights", "kv_cache"}, keeps_copy

    async def send_wake(self, tags: list[str]) -> None:
        await self.post_memory_control("/wake_up", params={"tags": tags})

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Loads weights from a folder, or from a broadcast that each worker receives. Waits for
        running requests."""
        is_received_there = isinstance(source, BroadcastReceiver | HandoverReceiver)
        if self._adapters is not None or not is_received_there:
            return await super().load_weights(source, version)
        async with self.paused():
            arguments = {"memberships": json.dumps(source.memberships())}
            reports = await self._load("ajet_receive_weights", source, arguments)
        self.version = version
        (num_bytes,), (checksum,) = (
            {report[name] for report in reports} for name in ("num_bytes", "checksum")
        )
        seconds = max(report["seconds"] for report in reports)
        return SyncReport(version, seconds, num_bytes, checksum)

    async def send_weights(self, source: FolderSource, manifest: Manifest) -> SyncReport:
        arguments = {"path": str(source.path)}
        reports = await self._load("ajet_load_weights", source, arguments)
        for report in reports:
            if report["num_bytes"] != manifest.num_bytes:
                raise WeightsError(
                    f"{self.name}: weights of version {source.version}: a worker read "
                    f"{report['num_bytes']} bytes, {manifest.num_bytes} were sent"
                )
        slowest = max(report["seconds"] for report in reports)
        return SyncReport(source.version, slowest, manifest.num_bytes, manifest.checksum)

    async def load_adapter(self, name: str, path: Path) -> None:
        await self.resume_memory("weights")
        await self._send_adapter("load", {"lora_name": name, "lora_path": str(path)})

    async def unload_adapter(self, name: str) -> None:
        await self._send_adapter("unload", {"lora_name": name})

    async def _send_adapter(self, action: str, body: dict[str, str]) -> None:
        path = f"/v1/{action}_lora_adapter"
        try:
            await self.request("POST", path, timeout=LOAD_S, json=body)
        except ModelError as error:
            raise WeightsError(str(error)) from error
        except ReplicaDown as down:
            if down.http_status != 500:
                raise
            # vLLM's answer to an adapter that does not fit: a replacement would give the same.
            raise WeightsError(str(down)) from down

    async def _load(
        self, method: str, source: WeightSource, request: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Calls a method of our worker extension, empties the cache, and returns the workers'
        reports."""
        await self.resume_memory("weights")
        arguments = {**request, "version": str(source.version), "model_path": self._model.path}
        if source.adapters is not None:
            arguments["adapters"] = source.adapters.dumps()
        body = {"method": method, "kwargs": arguments}
        answer = await self.request("POST", "/collective_rpc", timeout=LOAD_S, json=body)
        reports: list[dict[str, Any]] = answer["results"]
        for report in reports:
            if "error" in report:
                raise WeightsError(f"{self.name}: {report['error']}")
        self._has_weights = True
        await self.send_empty_cache()
        return reports

    async def _pause(self, mode: str) -> None:
        """Pauses the scheduler and keeps the prefix cache."""
        await self.post("/pause", params={"mode": mode, "clear_cache": "false"})

    async def send_empty_cache(self) -> None:
        """Empties the caches of prefixes and images; WeightsError if a request still uses one."""
        answer = await self.post("/reset_prefix_cache")
        if answer is not None and not answer.get("success", True):
            raise WeightsError(f"{self.name}: the prefix cache is in use and was not emptied")
        if self._model.images is not None:
            # Loading weights empties the workers' cache of features, and its scheduler, which is
            # not told, would take what is there no more.
            await self.post("/reset_encoder_cache")


def request_body(model: str, prompt_ids: list[int], sampling: SamplingParams) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt_ids,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **sampling_fields(sampling),
    }


def image_request_body(
    model: str, prompt_ids: list[int], images: list[str], sampling: SamplingParams
) -> dict[str, Any]:
    """Returns a request with images, given as data URLs, each with one placeholder in the prompt.
    vLLM expands them, and returns the whole prompt's ids."""
    return {
        "model": model,
        "token_ids": prompt_ids,
        "content_parts": [{"type": "image_url", "url": each} for each in images],
        "return_token_ids": True,
        "sampling_params": sampling_fields(sampling),
    }


def sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
    }
    if sampling.grammar:
        # Applied to the logits before anything else, so the log-probabilities are restricted.
        fields |= {"structured_outputs": {"grammar": sampling.grammar}}
    return fields
