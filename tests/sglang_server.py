"""A stand-in for an SGLang server: speaks its HTTP API (0.5.23), computes with a tiny model.

Requests and answers have the names and forms of sglang.srt.managers.io_struct; an unknown field is
refused, so that the adapter cannot send what SGLang does not know. Tensors from memory are taken
within an update session, and a sampling mask needs a top_k, as in the version that it says it is.
Released weights are lost, unless it keeps a copy on the CPU, and the scheduler dies (`is_dead`)
where it must be idle and is not. Adapters (lora_models.py) are loaded beside the base.
`sglang_python` makes what stands for the Python that has SGLang installed: it starts this file in
place of `-m sglang.launch_server`.
"""

import argparse
import asyncio
import base64
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.weight_sync.manifest import Manifest, TensorInfo
from ajet.engines.in_process_replica import InProcessReplica
from ajet.servers.environment import version_numbers
from tests.lora_models import LoraModels


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SamplingBody(Body):
    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 1 << 30
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    sampling_seed: int | None = None


class GenerateReqInput(Body):
    rid: str
    input_ids: list[int]
    sampling_params: SamplingBody
    return_logprob: bool = False
    return_sampling_mask: bool | None = None
    lora_path: str | None = None


class UpdateWeightFromDiskReqInput(Body):
    model_path: str
    load_format: str | None = None
    abort_all_requests: bool = False
    weight_version: str | None = None
    flush_cache: bool = True


class UpdateWeightsFromTensorReqInput(Body):
    serialized_named_tensors: list[str]
    load_format: str | None = None
    flush_cache: bool = True
    weight_version: str | None = None


class BeginWeightUpdateReqInput(Body):
    selector: str = "all"


class EndWeightUpdateReqInput(Body): ...


class LoadLoRAAdapterReqInput(Body):
    lora_name: str
    lora_path: str
    pinned: bool = False


class UnloadLoRAAdapterReqInput(Body):
    lora_name: str


class MemoryReqInput(Body):
    tags: list[str] | None = None


class AbortReq(Body):
    rid: str = ""
    abort_all: bool = False


class CheckWeightsReqInput(Body):
    action: str = "checksum"


class SglangStandIn:
    """The server's state and its routes."""

    def __init__(
        self,
        model,
        version="0.5.23",
        has_masks=True,
        has_checker=True,
        max_model_len=1024,
        eos_token_ids=(),
        keeps_weights=False,
    ):
        self.model = model
        self.version = version
        self.has_masks = has_masks
        self.has_checker = has_checker
        self.eos_token_ids = tuple(eos_token_ids)
        self.health_s = 0.0
        self.num_probes = 0  # health checks under way, each of which samples a token
        self.is_dead = False
        self.is_queueing = False  # what comes waits to be run
        self.loses_weights = False  # answers "success" and changes nothing
        self.keeps_weights = keeps_weights
        self.weight_version = "default"
        self.released = set()
        self.has_session = False
        self.calls = []
        self.payloads = []  # of the last request with tensors, one for each worker
        self.running = {}
        self.models = LoraModels(model, max_model_len)
        self.lora_calls = []
        self.replica = InProcessReplica(
            "inside", model, stop_token_ids=(), max_model_len=max_model_len
        )

    async def generate(self, body: GenerateReqInput):
        if self.released:
            return JSONResponse({"error": {"message": "memory is released"}}, 500)
        asked = body.sampling_params
        if body.return_sampling_mask and self.is_from(20) and not 1 <= asked.top_k <= 4096:
            message = "return_sampling_mask requires top_k=1 … or finite 1 < top_k <= 4096"
            return JSONResponse({"error": {"message": message}}, 400)
        stops = () if asked.ignore_eos else (*(asked.stop_token_ids or ()), *self.eos_token_ids)
        sampling = SamplingParams(
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k if asked.top_k < 1 << 30 else -1,
            max_tokens=asked.max_new_tokens,
            stop_token_ids=stops,
            seed=asked.sampling_seed or 0,
        )
        self.running[body.rid] = True
        if self.is_queueing:
            return await self._aborted_in_queue(body)
        if body.lora_path is not None:
            reply = await self.models.generate(body.lora_path, body.input_ids, sampling)
        else:
            reply = await self._slowly(body.input_ids, sampling, body.rid)
        del self.running[body.rid]
        return self._answer(body, sampling, reply)

    async def _slowly(self, prompt_ids, sampling, rid):
        """A tiny model is faster than a test: two milliseconds a token."""
        reply = await self.replica.generate(prompt_ids, sampling, rid)
        for count in range(1, len(reply.token_ids) + 1):
            await asyncio.sleep(0.002)
            if self.running[rid] is False:
                return type(reply)(
                    reply.prompt_ids, reply.token_ids[:count], reply.logprobs[:count], "abort", 0
                )
        return reply

    async def _aborted_in_queue(self, body):
        """What never ran has no numbers, of any kind."""
        while self.running[body.rid]:
            await asyncio.sleep(0.002)
        del self.running[body.rid]
        reason = {"type": "abort", "message": "Abort in waiting queue"}
        return {"output_ids": [], "meta_info": {"id": body.rid, "finish_reason": reason}}

    def _answer(self, body, sampling, reply):
        kind = {"stop": {"matched": reply.token_ids[-1]}} if reply.finish_reason == "stop" else {}
        reasons = {
            "stop": {"type": "stop", **kind.get("stop", {})},
            "length": {"type": "length", "length": len(reply.token_ids)},
            "abort": {"type": "abort", "message": "Abort in waiting queue"},
        }
        meta = {
            "id": body.rid,
            "finish_reason": reasons[reply.finish_reason],
            "prompt_tokens": len(body.input_ids),
            "weight_version": self.weight_version,
            "completion_tokens": len(reply.token_ids),
        }
        if body.return_logprob:
            model = self.models.model(body.lora_path or "")
            before = self._before_cut(model, reply, sampling)
            drawn = zip(before, reply.token_ids, strict=True)
            meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in drawn]
        if body.return_sampling_mask and self.has_masks:
            meta["output_token_sampling_logprobs"] = list(reply.logprobs)
        trimmed = reply.finish_reason == "stop" and not body.sampling_params.no_stop_trim
        output_ids = list(reply.token_ids[:-1] if trimmed else reply.token_ids)
        return {"output_ids": output_ids, "meta_info": meta}

    def _before_cut(self, model, reply, sampling):
        ids = torch.tensor([[*reply.prompt_ids, *reply.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(reply.prompt_ids) - 1 : -1]
        logprobs = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        return logprobs.gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0].tolist()

    async def load_lora_adapter(self, body: LoadLoRAAdapterReqInput):
        self.lora_calls.append(("load", body.lora_name))
        fault = f"{body.lora_name} is already loaded" if body.lora_name in self.models.names else ""
        return self._lora_answer(fault or self.models.load(body.lora_name, body.lora_path))

    async def unload_lora_adapter(self, body: UnloadLoRAAdapterReqInput):
        self.lora_calls.append(("unload", body.lora_name))
        if body.lora_name not in self.models.names:
            return self._lora_answer(f"{body.lora_name} is not loaded")
        self.models.unload(body.lora_name)
        return self._lora_answer("")

    def _lora_answer(self, fault):
        answer = {"success": not fault, "error_message": fault, "loaded_adapters": {}}
        return JSONResponse(answer, 400 if fault else 200)

    async def update_weights_from_disk(self, body: UpdateWeightFromDiskReqInput):
        from safetensors.torch import load_file

        shards = sorted(Path(body.model_path).glob("*.safetensors"))
        tensors = {name: t for shard in shards for name, t in load_file(shard).items()}
        return self._take(tensors, body, names_all=True)

    def is_from(self, patch):
        """Whether it stands for SGLang 0.5.`patch` or a newer one."""
        return version_numbers(self.version) >= (0, 5, patch)

    async def begin_weight_update(self, body: BeginWeightUpdateReqInput):
        return self._set_session(True, "a weight-update session is already open")

    async def end_weight_update(self, body: EndWeightUpdateReqInput):
        return self._set_session(False, "no weight-update session is open")

    def _set_session(self, is_open, message):
        if self.has_session == is_open:
            return JSONResponse({"success": False, "message": message}, 400)
        self.has_session = is_open
        return {"success": True, "message": "Success"}

    async def update_weights_from_tensor(self, body: UpdateWeightsFromTensorReqInput):
        if self.is_from(21) and not self.has_session:
            message = "update_weights_from_tensor must run between begin_weight_update() and …"
            return JSONResponse({"success": False, "message": message}, 400)
        self.payloads = body.serialized_named_tensors
        tensors = dict(pickle.loads(base64.b64decode(self.payloads[0])))
        return self._take(tensors, body, names_all=False)

    def _take(self, tensors, body, names_all):
        own = dict(self.model.named_parameters())
        wrong = [n for n, t in tensors.items() if n not in own or own[n].shape != t.shape]
        if wrong or "weights" in self.released or (names_all and own.keys() - tensors.keys()):
            message = (
                f"Failed to update weights: {wrong}, missing {sorted(own.keys() - tensors.keys())}"
            )
            return JSONResponse({"success": False, "message": message}, 400)
        if not self.loses_weights:
            with torch.no_grad():
                for name, tensor in tensors.items():
                    own[name].copy_(tensor)
        if body.flush_cache:
            self.is_dead |= not self.is_idle
            self._flush()
        self.weight_version = body.weight_version
        return {"success": True, "message": "Succeeded to update model weights."}

    def _flush(self):
        self.replica._engine.publish(0)

    @property
    def is_idle(self):
        return not self.running and not self.num_probes

    async def health(self):
        self.is_dead |= bool(self.released)
        self.num_probes += 1
        await asyncio.sleep(self.health_s)
        self.num_probes -= 1
        return Response(status_code=503 if self.is_dead else 200)

    async def flush_cache(self):
        if not self.is_idle:
            return Response("Flush cache failed.", 400)
        self._flush()
        return Response("Cache flushed.")

    async def release(self, body: MemoryReqInput):
        self.is_dead |= not self.is_idle
        self.released |= set(body.tags or ["weights", "kv_cache"])
        if "weights" in self.released and not self.keeps_weights:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.zero_()

    async def take_back(self, body: MemoryReqInput):
        self.released -= set(body.tags or ["weights", "kv_cache"])

    async def abort(self, body: AbortReq):
        for rid in self.running:
            if body.abort_all or rid == body.rid:
                self.running[rid] = False
        return Response(status_code=200)

    async def check_weights(self, body: CheckWeightsReqInput):
        if not self.has_checker:
            return JSONResponse({"detail": "Not Found"}, 404)
        infos = (TensorInfo.of(f"sglang.{n}", p) for n, p in self.model.named_parameters())
        checksum = Manifest(0, tuple(infos)).checksum
        return {"success": True, "message": "", "ranks": [], "per_engine_checksum": checksum}

    async def info(self):
        return {"version": self.version, "internal_states": []}

    def app(self):
        app = FastAPI()
        get, post = {"methods": ["GET"]}, {"methods": ["POST"]}
        routes: list[tuple[str, Any, dict]] = [
            ("/generate", self.generate, post),
            ("/update_weights_from_disk", self.update_weights_from_disk, post),
            ("/update_weights_from_tensor", self.update_weights_from_tensor, post),
            ("/load_lora_adapter", self.load_lora_adapter, post),
            ("/unload_lora_adapter", self.unload_lora_adapter, post),
            ("/flush_cache", self.flush_cache, post),
            ("/release_memory_occupation", self.release, post),
            ("/resume_memory_occupation", self.take_back, post),
            ("/abort_request", self.abort, post),
            ("/weights_checker", self.check_weights, post),
            ("/server_info" if self.version >= "0.5.2" else "/get_server_info", self.info, get),
            ("/health", self.health, get),
        ]
        if self.is_from(21):
            routes += [
                ("/begin_weight_update", self.begin_weight_update, post),
                ("/end_weight_update", self.end_weight_update, post),
            ]
        for path, handler, options in routes:
            app.add_api_route(path, handler, response_model=None, **options)

        @app.middleware("http")
        async def note(request, call_next):
            self.calls.append(request.url.path)
            return await call_next(request)

        return app


class Serving:
    """A stand-in on a port of loopback, in a thread of its own."""

    def __init__(self, stand_in, port):
        config = uvicorn.Config(
            stand_in.app(), host="127.0.0.1", port=port, log_level="error", lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self.url = f"http://127.0.0.1:{port}"

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)


def sglang_python(folder: Path) -> str:
    """For `ajet.rollout.server.python`; the server answers to the arguments that ajet gives."""
    script = folder / "python-with-sglang"
    root = Path(__file__).parents[1]
    script.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} {__file__} "$@"\n')
    script.chmod(0o755)
    return str(script)


def main():
    """As `python -m sglang.launch_server …`."""
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser()
    parser.add_argument("-m", choices=["sglang.launch_server"], required=True)
    parser.add_argument("--model-path", required=True)
    for name in ("--port", "--context-length"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--enable-weights-cpu-backup", action="store_true")
    asked, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(asked.model_path, dtype=torch.float32).eval()
    stand_in = SglangStandIn(
        model, max_model_len=asked.context_length, keeps_weights=asked.enable_weights_cpu_backup
    )
    uvicorn.run(stand_in.app(), host="127.0.0.1", port=asked.port, log_level="info")


if __name__ == "__main__":
    main()
