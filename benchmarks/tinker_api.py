"""What Tinker's API costs on this machine: a group's update, a token's latency, a model's memory.

    python benchmarks/tinker_api.py [--rounds 9] [--calls 200] [--out FILE]

1. One forward_backward over HTTP, of groups of replies to a common prompt, with each of the three
   layouts; the layouts alternate. The limit is the ratio of computed tokens: what is saved if a
   token costs the same everywhere. Goal: the tree at least 2.5x as fast as padded rows.
2. A sample of one token: the gateway's chat completion, an asample with its retrieve_future over
   the same plain HTTP client, and one through the SDK, with the same prompt and model in one
   process; the three alternate, and the client is another process. Goal: asample at most 3 ms
   above the gateway, at the median.
3. Seconds and memory of create_model with rank 32, and of a sampler of its weights until it has
   sampled one token, with a model of random weights in the shape of SmolLM2-135M.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np
from measuring import SMOLLM2
from report import memory, options, spread, write

MODEL = "embedded:math"
GOAL_SPEEDUP, GOAL_MS = 2.5, 3.0
LAYOUTS = ("padded", "packed", "tree")
PROMPT, REPLY = 285, 40
"""Tokens of the demo's prompt and of its first reply."""
SHAPES = {"2 groups of 8": (2, 8), "1 group of 16": (1, 16)}
QUESTION = [{"role": "user", "content": "What is 2+3?"}]
MIB = 1 << 20


class Client:
    """A client of Tinker's API without the SDK, on one connection."""

    def __init__(self, address: str) -> None:
        self.http = httpx.Client(base_url=f"{address}/api/v1", timeout=600)
        self.session_id = self.post("create_session", tags=[], sdk_version="0")["session_id"]

    def post(self, path: str, **fields: Any) -> Any:
        return self.http.post(f"/{path}", json=fields).raise_for_status().json()

    def answer(self, future: Any) -> httpx.Response:
        wanted = {"request_id": future["request_id"]}
        while (reply := self.http.post("/retrieve_future", json=wanted)).status_code == 408:
            pass
        return reply.raise_for_status()

    def create_model(self, number: int = 0) -> str:
        future = self.post(
            "create_model",
            session_id=self.session_id,
            model_seq_id=number,
            lora_config={"rank": 32, "seed": 1},
        )
        return self.answer(future).json()["model_id"]

    def forward_backward(self, message: Any, model_id: str, seq_id: int) -> None:
        from ajet.serve.tinker.wire import PROTOBUF

        message.model_id, message.seq_id = model_id, seq_id
        headers = {"content-type": PROTOBUF}
        body = message.SerializeToString()
        sent = self.http.post("/forward_backward", content=body, headers=headers)
        reply = self.answer(sent.raise_for_status().json())
        assert reply.headers["content-type"] == PROTOBUF, reply.text

    def sample_token(self, sampler_id: str, number: int, prompt_ids: Sequence[int]) -> None:
        future = self.post(
            "asample",
            sampling_session_id=sampler_id,
            seq_id=number,
            prompt={"chunks": [{"type": "encoded_text", "tokens": list(prompt_ids)}]},
            sampling_params={"max_tokens": 1},
        )
        assert self.answer(future).headers["content-type"] != "application/json"

    def base_sampler(self) -> str:
        fields = {"session_id": self.session_id, "sampling_session_seq_id": 0}
        return self.post("create_sampling_session", **fields)["sampling_session_id"]


@contextlib.contextmanager
def served(folder: Path, model: str, *sets: str) -> Iterator[str]:
    """Serves Tinker's API in this process, and yields the address."""
    from ajet.core.config import load_config
    from ajet.core.record.run_folder import RunFolder
    from ajet.serve.tinker.samplers import CONFIG
    from ajet.serve.tinker.server import make_service, start_server

    overrides = [
        f"ajet.model.path='{model}'",
        "ajet.model.device=cpu",
        "ajet.serve.port=auto",
        "ajet.rollout.max_model_len=1024",
        "ajet.trainer_common.torch_threads=1",
        *sets,
    ]
    config = load_config(CONFIG, overrides, backbone="debug", exp_dir=folder)
    with RunFolder.open(config.run_folder) as run:
        server = start_server(make_service(config, run), config, None)
        yield server.base_url.removesuffix("/v1")
        server.close(finish_s=1)


# 1. A group's update.


def group_message(groups: int, replies: int) -> tuple[Any, int, int]:
    """Returns a request, and the numbers of its tokens as rows and as a tree."""
    from ajet.serve.tinker.wire import schema

    types, rng = schema(), np.random.default_rng(0)
    message = types.ForwardBackwardRequest(loss_fn="importance_sampling")
    as_rows = as_tree = 0
    for _ in range(groups):
        prompt = rng.integers(0, 1000, PROMPT)
        as_tree += len(prompt)
        for _ in range(replies):
            reply = rng.integers(0, 1000, round(REPLY * rng.uniform(0.75, 1.25)))
            ids = np.concatenate((prompt, reply))
            mask = np.arange(len(ids) - 1) >= len(prompt) - 1
            as_rows, as_tree = as_rows + len(ids) - 1, as_tree + len(reply) - 1
            datum = message.data.add()
            datum.model_input.add().encoded_text.tokens = ids[:-1].astype(np.int32).tobytes()
            tensors = {
                "target_tokens": ids[1:],
                "logprobs": (-6.9 * mask).astype(np.float32),
                "advantages": (rng.normal() * mask).astype(np.float32),
            }
            for name, values in tensors.items():
                is_integer = values.dtype == np.int64
                datum.loss_fn_inputs[name].CopyFrom(
                    types.Tensor(
                        dense=values.tobytes(),
                        dtype=types.DTYPE_INT64 if is_integer else types.DTYPE_FLOAT32,
                        shape=values.shape,
                    )
                )
    return message, as_rows, as_tree


def updates(folder: Path, rounds: int) -> list[dict[str, Any]]:
    found = []
    with contextlib.ExitStack() as stack:
        clients = {}
        for layout in LAYOUTS:
            option = f"ajet.trainer_common.batch_layout={layout}"
            clients[layout] = Client(stack.enter_context(served(folder / layout, MODEL, option)))
        models = {layout: client.create_model() for layout, client in clients.items()}
        seq_id = 0
        for name, (groups, replies) in SHAPES.items():
            message, as_rows, as_tree = group_message(groups, replies)
            seconds: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
            for _ in range(rounds + 1):
                seq_id += 1
                for layout, client in clients.items():
                    begun = time.perf_counter()
                    client.forward_backward(message, models[layout], seq_id)
                    seconds[layout].append(time.perf_counter() - begun)
            medians = {layout: median(times[1:]) for layout, times in seconds.items()}
            found.append(
                {
                    "shape": f"{name}, prompt of {PROMPT}, replies of {REPLY} tokens",
                    "median_s": {layout: round(value, 4) for layout, value in medians.items()},
                    "tree_over": {
                        each: round(medians[each] / medians["tree"], 2) for each in LAYOUTS[:2]
                    },
                    "limit": round(as_rows / as_tree, 2),
                }
            )
    return found


# 2. A token's latency.


class Gateway:
    """The gateway over an engine with the same model, as `ajet serve` has it."""

    def __init__(self, max_len: int) -> None:
        from ajet import assembly
        from ajet.core.config import load_config
        from ajet.core.workflow.gateway.gateway import Gateway as ModelGateway
        from ajet.serve.tinker.samplers import CONFIG

        sets = [f"ajet.model.path='{MODEL}'", f"ajet.rollout.max_model_len={max_len}"]
        config = load_config(CONFIG, sets, backbone="debug")
        loaded = assembly.load_policy_model(config)
        self.template = assembly.make_template(loaded)
        self.engine = assembly.make_engine(
            config, loaded, self.template, deterministic=False, gathers=False
        )
        self.engine.enter("0")
        self.gateway = ModelGateway()

    def address(self, number: int) -> tuple[str, str]:
        """Returns the address of an episode's model, which writes one token."""
        from ajet import ModelTuner
        from ajet.core.inference.endpoint import SamplingParams
        from ajet.core.trajectory.limits import EpisodeLimits
        from ajet.core.trajectory.recorder import EpisodeRecorder
        from ajet.tool_parsers import parser_for

        recorder = EpisodeRecorder(
            endpoint=self.engine,
            template=self.template,
            parser=parser_for(self.template),
            limits=EpisodeLimits(max_response_length_in_one_turn=1, max_steps=10_000),
            sampling=SamplingParams(),
            episode_id=str(number),
            seed_path=(0, number),
        )
        return ModelTuner(recorder, gateway=self.gateway).as_oai_baseurl_apikey()[:2]


def call_all(tinker_address: str, gateway: tuple[str, str], ids: list[int], calls: int) -> Any:
    """Runs in another process: returns the milliseconds of each call, by its kind."""
    import tinker

    client = Client(tinker_address)
    sampler_id = client.base_sampler()
    chat = httpx.Client(
        base_url=gateway[0], headers={"authorization": f"Bearer {gateway[1]}"}, timeout=60
    )
    service = tinker.ServiceClient(base_url=tinker_address, api_key="tml-local")
    sdk: Any = service.create_sampling_client(base_model=MODEL)
    sdk = sdk.result() if hasattr(sdk, "result") else sdk
    prompt = tinker.types.ModelInput.from_ints(ids)
    params = tinker.types.SamplingParams(max_tokens=1)

    def ask_gateway(number: int) -> None:
        body = {"model": "m", "messages": QUESTION}
        chat.post("/chat/completions", json=body).raise_for_status()

    asks = {
        "gateway": ask_gateway,
        "asample": lambda number: client.sample_token(sampler_id, number, ids),
        "SDK": lambda number: sdk.sample(prompt, 1, params).result(),
    }
    found: dict[str, list[float]] = {name: [] for name in asks}
    for number in range(calls + 10):
        for name, ask in asks.items():
            begun = time.perf_counter()
            ask(number)
            found[name].append(1000 * (time.perf_counter() - begun))
    return {name: times[10:] for name, times in found.items()}


def _in_process(pipe: Any, job: Any) -> None:
    pipe.send(call_all(*job))


async def latency(folder: Path, calls: int) -> dict[str, Any]:
    gateway = Gateway(1024)
    address = gateway.address(0)
    ids = gateway.template.prompt_ids(QUESTION, [])
    with served(folder / "latency", MODEL) as tinker_address:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        job = (tinker_address, address, list(ids), calls)
        client = context.Process(target=_in_process, args=(there, job))
        client.start()
        times = await asyncio.to_thread(here.recv)
        client.join()
    gateway.gateway.close()
    await gateway.engine.close()
    medians = {name: median(each) for name, each in times.items()}
    return {
        "prompt_tokens": len(ids),
        "calls": calls,
        "ms": {name: spread(each) for name, each in times.items()},
        "asample_above_gateway_ms": round(medians["asample"] - medians["gateway"], 3),
        "sdk_above_gateway_ms": round(medians["SDK"] - medians["gateway"], 3),
        "goal_ms": GOAL_MS,
    }


# 3. Memory and seconds of models and samplers.


def write_model(folder: Path) -> Path:
    """Writes a model of random weights in the shape of SmolLM2-135M, with the demo's tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMOLLM2)).save_pretrained(folder)
    AutoTokenizer.from_pretrained("ajet/embedded/math").save_pretrained(folder)
    return folder


def models(folder: Path, count: int = 5) -> dict[str, Any]:
    created, sampled = [], []
    with served(folder / "models", str(write_model(folder / "135M"))) as address:
        client = Client(address)
        base = memory("VmRSS")
        for number in range(count):
            before, begun = memory("VmRSS"), time.perf_counter()
            model_id = client.create_model(number)
            created.append((time.perf_counter() - begun, memory("VmRSS") - before))
            # The adapter of a new model changes nothing: a step makes weights to sample with.
            client.forward_backward(group_message(1, 1)[0], model_id, 1)
            client.answer(client.post("optim_step", model_id=model_id, seq_id=2, adam_params={}))
            before, begun = memory("VmRSS"), time.perf_counter()
            future = client.post(
                "save_weights_for_sampler",
                model_id=model_id,
                seq_id=3,
                sampling_session_seq_id=number,
            )
            sampler_id = client.answer(future).json()["sampling_session_id"]
            client.sample_token(sampler_id, 0, range(64))
            sampled.append((time.perf_counter() - begun, memory("VmRSS") - before))
    del created[0], sampled[0]  # what is loaded and allocated once

    def shown(found: Sequence[tuple[float, int]]) -> dict[str, Any]:
        seconds, sizes = zip(*found, strict=True)
        return {"seconds": [round(s, 3) for s in seconds], "mib": [round(b / MIB) for b in sizes]}

    return {
        "model": "SmolLM2-135M's shape, random weights, float32",
        "base_mib": round(base / MIB),
        "create_model": shown(created),
        "sampler_and_first_token": shown(sampled),
    }


def main() -> None:
    args = options(__doc__, "tinker_api", rounds=9, calls=200).parse_args()
    result: dict[str, Any] = {"load": [round(each, 1) for each in os.getloadavg()]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result["latency"] = asyncio.run(latency(folder, args.calls))
        print(json.dumps(result, indent=1), flush=True)
        result["updates"] = updates(folder, args.rounds)
        result["models"] = models(folder)
    result["goal_speedup"] = GOAL_SPEEDUP
    result["passed"] = {
        "updates": all(each["tree_over"]["padded"] >= GOAL_SPEEDUP for each in result["updates"]),
        "latency": result["latency"]["asample_above_gateway_ms"] <= GOAL_MS,
    }
    write(args.out, result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
