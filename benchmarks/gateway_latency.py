"""What the HTTP gateway adds to a call of the model, with many episodes in flight.

    python -m benchmarks.gateway_latency [--episodes 64 256] [--out FILE.json]

The model is one that thinks for 0.4 to 0.6 s, drawn from the call's number, and then answers with
the time that it really took; an episode's agent calls it ten times, one after the other. Each agent
runs twice: in this process (`model_tuner.chat`) and over HTTP, from another process whose client is
a plain asyncio one of a few lines. What a call costs is its whole time less the model's; what the
gateway adds is the difference of the two medians. Goal: at most 3 ms with 64 episodes, and no call
lost with 256.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from ajet import ModelTuner
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.trajectory.limits import EpisodeLimits
from ajet.core.trajectory.recorder import EpisodeRecorder
from ajet.core.workflow.gateway.gateway import Gateway
from ajet.tool_parsers import parser_for
from benchmarks.report import options, spread, write

CALLS = 10
THINKS_S = (0.4, 0.6)
GOAL_MS = 3.0
QUESTION = [{"role": "user", "content": "What is 2+3?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
Ask = Callable[[], Awaitable[str]]


class ThinkingEndpoint(ModelEndpoint):
    """Answers with the milliseconds that it took."""

    policy_version = 0

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._draw = np.random.default_rng(0)

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        begun = time.perf_counter()
        await asyncio.sleep(self._draw.uniform(*THINKS_S))
        took_ms = 1000 * (time.perf_counter() - begun)
        ids = (*self._template.encode(f"{took_ms:.4f}"), self._template.stop_token_ids[0])
        return Completion(tuple(prompt_ids), ids, (0.0,) * len(ids), "stop", 0)


def tuners(template: ChatTemplate, gateway: Gateway, count: int) -> list[ModelTuner]:
    endpoint = ThinkingEndpoint(template)
    recorders = [
        EpisodeRecorder(
            endpoint=endpoint,
            template=template,
            parser=parser_for(template),
            limits=EpisodeLimits(),
            sampling=SamplingParams(),
            episode_id=f"e{number}",
            seed_path=(0, number),
        )
        for number in range(count)
    ]
    return [ModelTuner(recorder, gateway=gateway) for recorder in recorders]


async def costs_ms(asks: Sequence[Ask]) -> list[float]:
    """Of each call of each agent: its whole time less what the model says it took."""
    costs: list[float] = []

    async def agent(ask: Ask) -> None:
        for _ in range(CALLS):
            begun = time.perf_counter()
            took_ms = float(await ask())
            costs.append(1000 * (time.perf_counter() - begun) - took_ms)

    await asyncio.gather(*map(agent, asks))
    return costs


def in_process(tuner: ModelTuner) -> Ask:
    async def ask() -> str:
        return (await tuner.chat(QUESTION, [TOOL]))["content"]

    return ask


class Client:
    """One connection, which is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, path: str, body: Any, key: str) -> tuple[int, dict[str, Any]]:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        self._writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        told = await self._reader.readuntil(b"\r\n\r\n")
        length = int(told.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        answer = json.loads(await self._reader.readexactly(length))
        return int(told.split()[1]), answer


async def http_agent(port: int, key: str) -> Ask:
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    asked = {"model": "m", "messages": QUESTION, "tools": [TOOL]}

    async def ask() -> str:
        status, answer = await client.post("/v1/chat/completions", asked, key)
        assert status == 200, answer
        return answer["choices"][0]["message"]["content"]

    return ask


async def over_http(port: int, keys: Sequence[str]) -> list[float]:
    return await costs_ms([await http_agent(port, key) for key in keys])


def client_process(pipe: Any) -> None:
    """Runs what it is sent until it is sent None."""
    while (job := pipe.recv()) is not None:
        pipe.send(asyncio.run(over_http(*job)))


async def measure(template: ChatTemplate, pipe: Any, count: int) -> dict[str, Any]:
    gateway = Gateway()
    direct = await costs_ms([in_process(tuner) for tuner in tuners(template, gateway, count)])
    addresses = [tuner.as_oai_baseurl_apikey() for tuner in tuners(template, gateway, count)]
    port = int(addresses[0].base_url.rsplit(":", 1)[1].split("/")[0])
    pipe.send((port, [address.api_key for address in addresses]))
    over = await asyncio.to_thread(pipe.recv)
    gateway.close()
    return {
        "episodes": count,
        "calls": len(over),
        "calls_lost": count * CALLS - len(over),
        "in_process_ms": spread(direct),
        "http_ms": spread(over),
        "added_ms_median": round(median(over) - median(direct), 3),
    }


def main() -> None:
    parser = options(__doc__, "gateway_latency")
    parser.add_argument("--episodes", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    args = parser.parse_args()
    from transformers import AutoTokenizer

    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    here, there = multiprocessing.get_context("spawn").Pipe()
    client = multiprocessing.get_context("spawn").Process(target=client_process, args=(there,))
    client.start()
    found = [asyncio.run(measure(template, here, count)) for count in args.episodes]
    here.send(None)
    client.join()
    is_whole = not any(each["calls_lost"] for each in found)
    passed = is_whole and found[0]["added_ms_median"] <= GOAL_MS
    report = {"results": found, "goal_ms": GOAL_MS, "passed": passed}
    write(args.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
