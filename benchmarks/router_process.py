"""What the router's process spends on an episode, as prompts get longer.

    python benchmarks/router_process.py [--out FILE.json]

The endpoints of 64 workers (in 4 processes of a real Ray) run 8 episodes each, of 3 calls, against
2 engines that answer at once. The processor time of the router's process is read before and after.
Two ways are measured in one run: prompts and replies straight from worker to engine, where the
router only says which engine (ajet's way), and through the router (as earlier versions of ajet did:
the same router, with the endpoint in its process). Goal: the first does not grow with the prompt.

Two things make the first way's figure grow though the router never sees a prompt, and both are
measured. Ray's own threads use a little of the process's time in every second that passes:
`idle_us_per_second` is read while nothing is asked, and subtracted. And workers that are longer at
work on their prompts ask one by one where they would else ask together: `asks_per_episode` grows
towards its bound, one ask for each call. What an ask costs is the figure that must be flat.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import ray
from report import options, write

from ajet.cluster.actors import MAX_CALLS
from ajet.cluster.engine_process import ActorReplica, Outcome, Request
from ajet.cluster.engines import RouterHandle, RouterProcess
from ajet.cluster.session import start_ray
from ajet.core.inference.endpoint import Completion, ModelEndpoint, SamplingParams
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Assignment, Router, RouterSettings

ENDPOINTS, PROCESSES, ENGINES = 64, 4, 2
EPISODES, TURNS, REPLY = 8, 3, 32
PROMPTS = (1_024, 8_192, 32_768)
FLAT = 1.1
IDLE_S = 10.0
ROUNDS = 5
SAMPLING = SamplingParams(max_tokens=REPLY)


class InstantEngine:
    """An engine that answers at once; its interface is `EngineProcess`'s."""

    def __init__(self) -> None:
        self._outcomes: defaultdict[str, asyncio.Queue[Outcome]] = defaultdict(asyncio.Queue)

    async def submit(self, client: str, requests: Sequence[Request]) -> None:
        for _, _, request_id in requests:
            completion = Completion((), (7,) * REPLY, (-0.5,) * REPLY, "length", 0)
            self._outcomes[client].put_nowait((request_id, completion))

    async def take(self, client: str) -> list[Outcome]:
        outcomes = self._outcomes[client]
        found = [await outcomes.get()]
        while not outcomes.empty():
            found.append(outcomes.get_nowait())
        return found

    async def health(self) -> None: ...
    async def leave(self, episode_ids: Sequence[str]) -> None: ...


class RouterActor:
    """A router in a process of its own, asked in both ways."""

    def __init__(self, engines: list[Any]) -> None:
        self._engines = {f"engine {n}": actor for n, actor in enumerate(engines)}

    async def start(self) -> int:
        replicas: Any = [ActorReplica(name, actor) for name, actor in self._engines.items()]
        self._router = Router(replicas, RouterSettings(health_interval_s=3600))
        self._endpoint = RoutedEndpoint(self._router)
        self._num_asks = 0
        return os.getpid()

    async def num_asks(self) -> int:
        """Returns how often workers have asked for engines."""
        return self._num_asks

    async def assign(
        self, request_ids: Sequence[str], done: Sequence[str], left: Sequence[str]
    ) -> list[Assignment | BaseException]:
        self._num_asks += 1
        return await RouterProcess.assign(self, request_ids, done, left)  # type: ignore[arg-type]

    async def engine(self, name: str) -> Any:
        return self._engines[name]

    async def leave(self, episode_id: str) -> None:
        self._router.leave(episode_id)

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        """The other way: the prompt and the reply pass through here."""
        return await self._endpoint.generate(prompt_ids, sampling, request_id)


class ThroughRouter(ModelEndpoint):
    """An endpoint that sends prompts to the router."""

    def __init__(self, router: Any) -> None:
        self._router = router

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        return await self._router.generate.remote(prompt_ids, sampling, request_id)

    def leave(self, episode_id: str) -> None:
        self._router.leave.remote(episode_id)


class Workers:
    """The endpoints of some workers in one process."""

    async def run(self, router: Any, name: str, prompt: int, direct: bool) -> None:
        """Each worker runs its episodes at the same time over one endpoint. `name` is that of no
        other run, so that episodes differ."""
        ids = list(range(1, prompt + 1))

        async def episode(endpoint: ModelEndpoint, name: str) -> None:
            for turn in range(TURNS):
                completion = await endpoint.generate(ids, SAMPLING, f"{name}/{turn:04d}")
                assert len(completion.token_ids) == REPLY
            endpoint.leave(name)

        async def worker(at: int) -> None:
            endpoint: ModelEndpoint = (
                RoutedEndpoint(RouterHandle(router)) if direct else ThroughRouter(router)
            )
            names = [f"{name}-{at}-{n}" for n in range(EPISODES)]
            await asyncio.gather(*(episode(endpoint, name) for name in names))

        await asyncio.gather(*(worker(at) for at in range(ENDPOINTS // PROCESSES)))


@dataclass(frozen=True)
class Spent:
    """What one run cost: microseconds of the router's process for an episode, above what it uses
    while nothing is asked; asks for an episode; seconds."""

    us: float
    asks: float
    seconds: float


async def measure() -> dict[str, Any]:
    """Returns one row for each length of prompts, and the control."""
    untyped: Any = ray.remote
    engines = [untyped(InstantEngine).options(max_concurrency=MAX_CALLS).remote()] * ENGINES
    router = untyped(RouterActor).options(max_concurrency=MAX_CALLS).remote(engines)
    process = psutil.Process(await router.start.remote())
    workers = [untyped(Workers).remote() for _ in range(PROCESSES)]

    def cpu_s() -> float:
        times = process.cpu_times()
        return times.user + times.system

    async def spent(prompt: int, *, direct: bool) -> Spent:
        nonlocal num_runs
        num_runs += 1
        asks, before, started = await router.num_asks.remote(), cpu_s(), time.monotonic()
        names = [f"run{num_runs}-{n}" for n in range(PROCESSES)]
        runs = [
            each.run.remote(router, name, prompt, direct)
            for name, each in zip(names, workers, strict=True)
        ]
        await asyncio.gather(*runs)
        seconds, used = time.monotonic() - started, cpu_s() - before
        asks = await router.num_asks.remote() - asks
        episodes = ENDPOINTS * EPISODES
        return Spent((used - idle * seconds) / episodes * 1e6, asks / episodes, seconds)

    idle, num_runs = 0.0, 0
    for direct in (True, False):  # imports, connections
        await spent(16, direct=direct)
    before = cpu_s()
    await asyncio.sleep(IDLE_S)
    idle = (cpu_s() - before) / IDLE_S
    measured: dict[tuple[int, bool], list[Spent]] = defaultdict(list)
    for _ in range(ROUNDS):
        for prompt in PROMPTS:
            for direct in (True, False):
                measured[prompt, direct].append(await spent(prompt, direct=direct))
    rows = [row(prompt, measured[prompt, True], measured[prompt, False]) for prompt in PROMPTS]
    return {"idle_us_per_second": round(idle * 1e6), "rows": rows}


def row(prompt: int, directs: list[Spent], throughs: list[Spent]) -> dict[str, Any]:
    """Returns the medians of the rounds at one length of prompts."""
    direct = median(each.us for each in directs)
    through = median(each.us for each in throughs)
    return {
        "prompt_tokens": prompt,
        "direct_us_per_episode": round(direct),
        "asks_per_episode": round(median(each.asks for each in directs), 3),
        "direct_us_per_ask": round(median(each.us / each.asks for each in directs)),
        "direct_seconds": round(median(each.seconds for each in directs), 2),
        "through_the_router_us_per_episode": round(through),
        "ratio": round(through / direct, 1),
    }


def main() -> None:
    """Measure, print and write."""
    out = options(__doc__, "router_process").parse_args().out
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        start_ray(Path(folder), num_cpus=8, num_gpus=0, log_to_driver=False)
        try:
            measured = asyncio.run(measure())
        finally:
            ray.shutdown()
    first, last = measured["rows"][0], measured["rows"][-1]
    verdict = {
        f"{what}_longest_over_shortest": round(last[key] / first[key], 2)
        for what, key in (
            ("an_ask", "direct_us_per_ask"),
            ("an_episode", "direct_us_per_episode"),
        )
    }
    verdict["flat"] = FLAT
    sizes = {
        "worker_endpoints": ENDPOINTS,
        "processes": PROCESSES,
        "episodes_each": EPISODES,
        "calls_an_episode": TURNS,
        "rounds": ROUNDS,
    }
    write(out, {"workload": sizes, **measured, "verdict": verdict})
    for each in (*measured["rows"], verdict):
        print(each)


if __name__ == "__main__":
    main()
