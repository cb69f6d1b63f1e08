"""A vLLM server as a replica: token ids to `/v1/completions`, ids and log-probabilities back.

    temperature, cut    the server's `--logprobs-mode processed_logprobs`: log-probabilities of the
                        distribution drawn from, at temperature 1 for greedy ones
    stops               `ignore_eos` and the ids alone, so that a reply ends where ours would
    abort, pause        `/abort_requests`, `/pause`, `/resume` (VLLM_SERVER_DEV_MODE=1): what was
                        sampled comes back with finish_reason "abort"
    weights             our worker extension reads a folder in place, or takes part in a broadcast;
                        adapters alone are added to the weights that the server began with
                        (servers/worker_extension/)
    several adapters    `/v1/load_lora_adapter`, `/v1/unload_lora_adapter`
                        (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1); a request names one as its model

Start it with `servers/vllm.py`. Not covered: stop strings (the recorder cuts there), vLLM
before 0.26.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.core.error_codes import Code
from ajet.core.errors import ModelError
from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.inference.replica import ReplicaDown
from ajet.core.weight_sync.broadcast import BroadcastReceiver, HandoverReceiver
from ajet.core.weight_sync.folder import FolderSource
from ajet.core.weight_sync.manifest import Manifest, SyncReport, WeightsError, WeightSource
from ajet.servers.adapters import ServedAdapters
from ajet.servers.process import ServerProcess
from ajet.servers.replica import LOAD_S, ServedModel, ServerReplica

UNAVAILABLE = 503
"""The status with which vLLM 0.33 answers a request that arrives while it is paused."""
FINISH_REASONS = {"stop": "stop", "length": "length", "abort": "abort"}


class VllmReplica(ServerReplica):
    """A replica over a vLLM server; see the module's docstring."""

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
        """`sleep_mode` says that the server has vLLM's sleep mode (GPUs). Without it `sleep` only
        empties the cache."""
        super().__init__(name, url, model, process=process, version=version, adapters=adapters)
        self._sleep_mode = sleep_mode
        self._has_weights = True

    async def sample(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """Samples a continuation; see `ServerReplica.sample`."""
        version = self.version
        try:
            answer = await self.request(
                "POST",
                "/v1/completions",
                json=request_body(sampling.adapter or self._model.path, prompt_ids, sampling),
                headers={"X-Request-Id": request_id},
            )
        except ReplicaDown as down:
            if self._gate.is_open or down.http_status != UNAVAILABLE:
                raise
            # It was on its way when `pause` ended what runs; nothing was sampled.
            return Completion(tuple(prompt_ids), (), (), "abort", version)
        (choice,) = answer["choices"]
        if choice["finish_reason"] not in FINISH_REASONS:
            raise ModelError(
                f"{self.name}: request {request_id}: {choice['finish_reason']}",
                code=Code.SERVER_REFUSES,
            )
        return Completion(
            prompt_ids=tuple(prompt_ids),
            token_ids=tuple(choice["token_ids"] or ()),
            logprobs=tuple((choice["logprobs"] or {}).get("token_logprobs") or ()),
            finish_reason=choice["finish_reason"],
            policy_version=version,
        )

    async def warm_up(self) -> None:
        """Samples one token: the first request of a server compiles for seconds."""
        await self.sample([0], SamplingParams(max_tokens=1), "warm-up/0")

    async def send_abort(self, request_id: str) -> None:
        """Ends a request. The server's id for it has its endpoint before and the prompt's number
        after ours."""
        await self.post("/abort_requests", json={"request_ids": [f"cmpl-{request_id}-0"]})

    async def send_abort_all(self) -> None:
        """Ends all requests. One that arrives later is refused (vLLM 0.33), or waits there until
        the next call ends it (0.26 to 0.32)."""
        await self._pause("abort")

    async def send_pause(self) -> None:
        """Stops the scheduler. There is nothing to wait for, since only this replica sends
        requests."""
        await self._pause("wait")

    async def send_resume(self) -> None:
        """Allocates the memory of the cache if it slept, and lets the server's scheduler run,
        unless it has had no weights since its sleep."""
        if not self._has_weights:
            raise WeightsError(f"{self.name}: it gave up its weights in its sleep; load some first")
        await self.resume_memory(*self._asleep)
        await self.post("/resume")

    async def sleep(self) -> None:
        """Frees the cache, and with sleep mode the weights: new ones are loaded before it resumes,
        so no copy of the old ones is kept. Several adapters are loaded beside the base, of which
        vLLM keeps a copy in the CPU's memory."""
        await self.pause()
        if not self._sleep_mode:
            await self.send_empty_cache()
        elif not self._asleep:
            keeps_copy = self._adapters is not None
            await self.post_memory_control("/sleep", params={"level": 1 if keeps_copy else 2})
            self._asleep, self._has_weights = {"weights", "kv_cache"}, keeps_copy

    async def send_wake(self, tags: list[str]) -> None:
        await self.post_memory_control("/wake_up", params={"tags": tags})

    async def load_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Loads weights from a folder, or from a broadcast, of which each worker is a receiver.
        Running requests are waited for."""
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
        """Has the workers read the folder, each of them all of it."""
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
        """Loads an adapter from a folder as peft writes it."""
        await self.resume_memory("weights")
        await self._send_adapter("load", {"lora_name": name, "lora_path": str(path)})

    async def unload_adapter(self, name: str) -> None:
        """Forgets an adapter; its memory is used for another when the server needs it."""
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
            # So it says that an adapter does not fit; another server would say the same.
            raise WeightsError(str(down)) from down

    async def _load(
        self, method: str, source: WeightSource, request: Mapping[str, str]
    ) -> list[dict[str, Any]]:
        """Calls a method of our worker extension, empties the cache, and returns what each worker
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
        """Empties the prefix cache; the server says whether a request still uses it."""
        answer = await self.post("/reset_prefix_cache")
        if answer is not None and not answer.get("success", True):
            raise WeightsError(f"{self.name}: the prefix cache is in use and was not emptied")


def request_body(model: str, prompt_ids: list[int], sampling: SamplingParams) -> dict[str, Any]:
    """Returns the JSON body of `/v1/completions`."""
    return {
        "model": model,
        "prompt": prompt_ids,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
