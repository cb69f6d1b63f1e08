"""A thousand clients at one `ajet serve`: nothing is lost, and what a call costs beside the model.

    python -m benchmarks.client_episodes [--clients 100 1000] [--out FILE.json]

The server is the exchange, gateway, rollout and journal (SQLite) of `ajet serve` over a model that
thinks for 0.4 to 0.6 s and answers with the time that it really took. Each client is a plain
asyncio one in another process with a connection of its own: it begins an episode, waits until all
clients have one, calls the model five times, one after the other, and ends the episode with a
reward. What a call costs is its whole time less the model's. CPU seconds are those of each process.
Goal: every client has its episode at the same time, and none fails.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet import Task
from ajet.core.buffer.journal import Journal
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.process.descriptors import raise_descriptor_limit
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.serve.exchange.exchange import EpisodeExchange
from ajet.serve.exchange.gateway import ExchangeGateway
from ajet.serve.exchange.workflow import ClientOwned
from benchmarks.gateway_latency import QUESTION, Client, ThinkingEndpoint
from benchmarks.measuring import scripted_runner
from benchmarks.report import options, spread, write

CALLS, GROUP, KEY = 5, 8, "key"
API = "/ajet/v1"


async def play(
    port: int, barrier: asyncio.Barrier, found: dict[str, list[float]], thinks: bool
) -> None:
    """Runs one episode as a client does; appends to `found` what it took. A model that `thinks`
    answers with its own time, which is subtracted."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    begun = time.perf_counter()
    status, claim = await client.post(f"{API}/episodes", {"wait_s": 300}, KEY)
    found["begin_s"].append(time.perf_counter() - begun)
    assert status == 201, claim
    await barrier.wait()
    for _ in range(CALLS):
        begun = time.perf_counter()
        asked = {"model": "m", "messages": QUESTION}
        status, reply = await client.post("/v1/chat/completions", asked, claim["api_key"])
        assert status == 200, reply
        took_ms = float(reply["choices"][0]["message"]["content"]) if thinks else 0.0
        found["call_ms"].append(1000 * (time.perf_counter() - begun) - took_ms)
    begun = time.perf_counter()
    status, outcome = await client.post(f"{API}/episodes/{claim['id']}/end", {"reward": 1.0}, KEY)
    found["end_s"].append(time.perf_counter() - begun)
    assert status == 200 and outcome["status"] == "ok", outcome


async def play_all(port: int, count: int, thinks: bool = True) -> dict[str, Any]:
    barrier, found = asyncio.Barrier(count), {"begin_s": [], "call_ms": [], "end_s": []}
    begun, cpu_s = time.perf_counter(), time.process_time()
    ended = await asyncio.gather(
        *(play(port, barrier, found, thinks) for _ in range(count)), return_exceptions=True
    )
    failures = [each for each in ended if each is not None]
    return {
        "failures": len(failures),
        "first_failure": repr(failures[0]) if failures else None,
        "seconds": round(time.perf_counter() - begun, 2),
        "client_cpu_s": round(time.process_time() - cpu_s, 2),
        **{name: spread(values) for name, values in found.items() if values},
    }


def client_process(pipe: Any) -> None:
    """Runs what it is sent until it is sent None."""
    raise_descriptor_limit()
    while (job := pipe.recv()) is not None:
        pipe.send(asyncio.run(play_all(*job)))


async def measure(template: ChatTemplate, pipe: Any, count: int) -> dict[str, Any]:
    """Measures the server of backbone debug."""
    exchange = EpisodeExchange()
    gateway = ExchangeGateway(exchange, KEY)
    limits = RolloutLimits(max_env_worker=count)
    runner = scripted_runner(
        ClientOwned.of(exchange), template, ThinkingEndpoint(template), limits, gateway=gateway
    )
    return await measure_runner(runner, gateway, pipe, count)


async def measure_runner(
    runner: GroupRunner, gateway: ExchangeGateway, pipe: Any, count: int
) -> dict[str, Any]:
    """Runs `count` episodes of clients; CPU and memory are this process's."""
    port = int(gateway.listen().rsplit(":", 1)[1].split("/")[0])
    tasks = [Task(f"t{number}", "What is 2+3?") for number in range(count // GROUP)]
    cpu_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "finished.sqlite", "benchmark")
        journaled = gateway.acknowledging(runner, journal)
        pipe.send((port, count // GROUP * GROUP))
        request = RolloutRequest(tasks, step=0, mode="train", num_repeat=GROUP)
        groups = await journaled.rollout(request)
        journal.close()
    found = await asyncio.to_thread(pipe.recv)
    gateway.close()
    episodes = [t for group in groups for t in group.trajectories]
    return {
        "clients": len(episodes),
        "episodes_ok": sum(str(t.status) == "ok" for t in episodes),
        "calls_recorded": sum(len(t.turns) for t in episodes),
        "server_cpu_s": round(time.process_time() - cpu_s, 2),
        "server_peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "episodes_per_s": round(len(episodes) / found["seconds"], 1),
        **found,
    }


@contextmanager
def clients() -> Iterator[Any]:
    """Yields the pipe to the clients' process."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=client_process, args=(there,))
    process.start()
    try:
        yield here
    finally:
        here.send(None)
        process.join()


def has_passed(found: dict[str, Any]) -> bool:
    """Returns whether no client failed, and all that they did is there."""
    return (
        found["failures"] == 0
        and found["episodes_ok"] == found["clients"]
        and found["calls_recorded"] == found["clients"] * CALLS
    )


def main() -> None:
    parser = options(__doc__, "client_episodes")
    parser.add_argument("--clients", type=int, nargs="+", default=[104, 1000])
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    args = parser.parse_args()
    from transformers import AutoTokenizer

    raise_descriptor_limit()
    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    with clients() as pipe:
        found = [asyncio.run(measure(template, pipe, count)) for count in args.clients]
    report = {"calls_per_episode": CALLS, "results": found, "passed": all(map(has_passed, found))}
    write(args.out, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
