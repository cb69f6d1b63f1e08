"""A stand-in for the part of a vLLM server (0.32) that samples with several adapters: speaks its
HTTP API, computes with a tiny model. Where it has adapters, the base computes with the newest of
them, as a real one's does on a CPU (0.32) in a batch with others. What a real one does beside is in
tests/servers/test_vllm_replica.py.
"""

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from ajet.core.inference.endpoint import SamplingParams
from tests.lora_models import LoraModels


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CompletionRequest(Body):
    model: str
    prompt: list[int]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int
    return_token_ids: bool
    return_tokens_as_token_ids: bool


class LoadLoRAAdapterRequest(Body):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadLoRAAdapterRequest(Body):
    lora_name: str


class VllmStandIn:
    def __init__(self, model, path):
        self.path = path
        self.models, self.newest = LoraModels(model), ""
        self.lora_calls = []

    async def completions(self, body: CompletionRequest):
        name = "" if body.model == self.path else body.model
        if name not in self.models.names:
            return self._error(404, f"The model `{name}` does not exist.")
        if not name:
            name = self.newest
        stops = tuple(body.stop_token_ids)
        sampling = SamplingParams(
            body.temperature, body.top_p, body.top_k, body.max_tokens, stops, seed=body.seed
        )
        reply = await self.models.generate(name, body.prompt, sampling)
        choice = {
            "token_ids": list(reply.token_ids),
            "logprobs": {"token_logprobs": list(reply.logprobs)},
            "finish_reason": reply.finish_reason,
        }
        return {"choices": [choice]}

    async def load(self, body: LoadLoRAAdapterRequest):
        self.lora_calls.append(("load", body.lora_name))
        if body.lora_name in self.models.names:
            return self._error(400, f"The lora adapter '{body.lora_name}' has already been loaded.")
        if fault := self.models.load(body.lora_name, body.lora_path):
            return self._error(500, fault)
        self.newest = body.lora_name
        return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, body: UnloadLoRAAdapterRequest):
        self.lora_calls.append(("unload", body.lora_name))
        if body.lora_name not in self.models.names:
            return self._error(404, f"The lora adapter '{body.lora_name}' cannot be found.")
        self.models.unload(body.lora_name)
        return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def sleep(self, level: int):
        self.sleep_level = level

    async def done(self):
        return {"success": True}

    def _error(self, code, message):
        return JSONResponse({"error": {"message": message, "code": code}}, code)

    def app(self):
        app = FastAPI()
        routes = {
            "/v1/completions": self.completions,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": self.unload,
            "/sleep": self.sleep,
            **dict.fromkeys(("/pause", "/resume", "/wake_up", "/reset_prefix_cache"), self.done),
        }
        for path, handler in routes.items():
            app.add_api_route(path, handler, methods=["POST"], response_model=None)
        return app
