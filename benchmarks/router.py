"""The router: how much of the prefix cache it keeps, and what it costs as everything grows.

    python benchmarks/router.py [--out benchmarks/results/router.json]

Cache: a simulation of 4 and 8 replicas with 1,000 episodes in flight, each an agent of 10 turns
(prompt 600 tokens of which 400 are common to all, reply 80 to 240, tool answer 40 to 400, tools of
log-normal latency, sigma 1). A replica serves a request in the time of its tokens that are not
cached, and of its new ones, slower the more it has. It remembers all episodes that it was shown.
A hit is a prompt token that need not be computed. Ideal: every prefix of an episode, and the common
prompt once a replica. Goal: 98 % of it.

Growth: 10 to 1,000 replicas and 1,000 to 100,000 episodes of 10 turns, 100 in flight a replica; the
processor time of the bookkeeping for an episode, and that of the whole Router over replicas that
answer at once. Goal: flat. What the simulation takes is not counted. Service times are those of a
0.5B model on one GPU (a decode step 8 ms, 16,000 prompt tokens a second): assumed, not measured.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from report import options, write

from ajet.core.inference.endpoint import Completion, SamplingParams
from ajet.core.inference.routed_endpoint import RoutedEndpoint
from ajet.core.inference.router import Router, RouterSettings
from ajet.core.inference.routing import Routing

TURNS, COMMON, OWN = 10, 400, 200
IN_FLIGHT, EPISODES = 1000, 3000
STEP_S, SLOWER_PER_REQUEST, PREFILL_PER_S = 0.008, 0.00004, 16_000
TOOL_S, SIGMA = 0.5, 1.0
SCALES = ((10, 1_000), (100, 10_000), (1_000, 100_000))
GOAL, FLAT = 0.98, 1.5


@dataclass
class Server:
    """A replica of the simulation."""

    has_common: bool = False
    known: dict[int, int] = field(default_factory=dict)  # episode -> tokens of its prefix
    running: int = 0


@dataclass
class Episode:
    number: int
    luck: random.Random
    turn: int = 0
    context: int = COMMON + OWN
    seen: int = COMMON
    """Tokens of the prompt that some replica has computed before."""


@dataclass
class Traffic:
    """What happened: tokens of prompts, cached ones, those of the ideal; and how uneven it was."""

    prompt: int = 0
    hits: int = 0
    ideal: int = 0
    moved: int = 0
    seconds: float = 0.0
    widest_gap: int = 0

    @property
    def share(self) -> float:
        return self.hits / self.ideal


def simulate(routing: Routing, names: list[str]) -> Traffic:
    """Runs the traffic of the module's docstring."""
    servers = {name: Server() for name in names}
    traffic, events, waiting = Traffic(ideal=-COMMON * len(names)), [], iter(range(EPISODES))
    order = iter(range(10**9))

    def ask(now: float, episode: Episode) -> None:
        request_id = f"{episode.number}/{episode.turn}"
        name = routing.assign(request_id)
        server = servers[name]
        cached = max(server.known.get(episode.number, 0), COMMON * server.has_common)
        traffic.prompt += episode.context
        traffic.hits += cached
        traffic.ideal += episode.seen
        new = episode.luck.randint(80, 240)
        server.running, server.has_common = server.running + 1, True
        busy = [each.running for each in servers.values()]
        traffic.widest_gap = max(traffic.widest_gap, max(busy) - min(busy))
        step = STEP_S + SLOWER_PER_REQUEST * server.running
        took = (episode.context - cached) / PREFILL_PER_S + new * step
        heapq.heappush(events, (now + took, next(order), "answer", episode, (name, new)))

    def begin(now: float) -> None:
        number = next(waiting, None)
        if number is not None:
            ask(now, Episode(number, random.Random(number)))

    for _ in range(IN_FLIGHT):
        begin(0.0)
    while events:
        now, _, kind, episode, what = heapq.heappop(events)
        traffic.seconds = now
        if kind == "tool":
            ask(now, episode)
            continue
        name, new = what
        routing.done(f"{episode.number}/{episode.turn}")
        servers[name].running -= 1
        servers[name].known[episode.number] = episode.context + new
        episode.turn += 1
        episode.seen = episode.context + new
        if episode.turn == TURNS:
            routing.leave(str(episode.number))
            for server in servers.values():
                server.known.pop(episode.number, None)
            begin(now)
            continue
        episode.context += new + episode.luck.randint(40, 400)
        latency = TOOL_S * math.exp(SIGMA * episode.luck.gauss(0, 1))
        heapq.heappush(events, (now + latency, next(order), "tool", episode, None))
    traffic.moved = routing.num_moved
    return traffic


def cache() -> list[dict[str, Any]]:
    """The router with 4 and 8 replicas."""
    found = []
    for num_replicas in (4, 8):
        names = [f"r{number}" for number in range(num_replicas)]
        traffic = simulate(Routing(names), names)
        found.append(
            {
                "replicas": num_replicas,
                "chooser": "router",
                "share_of_ideal_hits": round(traffic.share, 4),
                "hits_of_prompt_tokens": round(traffic.hits / traffic.prompt, 4),
                "moved_requests": traffic.moved,
                "widest_gap": traffic.widest_gap,
                "simulated_seconds": round(traffic.seconds, 1),
            }
        )
        print(found[-1], flush=True)
    return found


def traffic_of(num_replicas: int, num_episodes: int) -> list[tuple[str, str]]:
    """Calls of a Routing in an order as in a run: 100 requests in flight a replica."""
    luck, calls = random.Random(3), []
    flying: list[tuple[int, int]] = []
    fresh = iter(range(num_episodes))
    width = min(100 * num_replicas, num_episodes)
    for number in [next(fresh) for _ in range(width)]:
        flying.append((number, 0))
        calls.append(("assign", f"{number}/0"))
    while flying:
        place = luck.randrange(len(flying))
        number, turn = flying[place]
        calls.append(("done", f"{number}/{turn}"))
        if turn + 1 == TURNS:
            calls.append(("leave", str(number)))
            number, turn = next(fresh, None), -1
        if number is None:
            flying[place] = flying[-1]
            flying.pop()
            continue
        flying[place] = (number, turn + 1)
        calls.append(("assign", f"{number}/{turn + 1}"))
    return calls


def bookkeeping(num_replicas: int, num_episodes: int) -> float:
    """Microseconds of processor time for an episode."""
    calls = traffic_of(num_replicas, num_episodes)
    routing = Routing([f"r{number}" for number in range(num_replicas)])
    steps: list[tuple[Callable[[str], object], str]] = [
        (getattr(routing, kind), name) for kind, name in calls
    ]
    gc.collect()
    gc.freeze()  # the two million calls to come are the benchmark's own
    started = time.process_time()
    for call, name in steps:
        call(name)
    spent = time.process_time() - started
    assert routing.num_in_flight == 0
    return spent / num_episodes * 1e6


class Instant:
    """A replica that answers in the next turn of the loop."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def generate(
        self, prompt_ids: list[int], sampling: SamplingParams, request_id: str
    ) -> Completion:
        await asyncio.sleep(0)
        return Completion(tuple(prompt_ids), (1,), (0.0,), "length", 0)

    def leave(self, episode_id: str) -> None: ...
    async def health(self) -> None: ...
    async def close(self) -> None: ...


async def whole_router(num_replicas: int, num_episodes: int) -> float:
    """Microseconds of processor time for an episode of the whole Router and the endpoint over it,
    1,000 in flight."""
    replicas: Any = [Instant(f"r{number}") for number in range(num_replicas)]
    router, sampling = Router(replicas, RouterSettings(health_interval_s=3600)), SamplingParams()
    endpoint = RoutedEndpoint(router)
    numbers = iter(range(num_episodes))

    async def lane() -> None:
        for number in numbers:
            for turn in range(TURNS):
                await endpoint.generate([1, 2, 3], sampling, f"{number}/{turn}")
            endpoint.leave(str(number))

    started = time.process_time()
    await asyncio.gather(*(lane() for _ in range(min(IN_FLIGHT, num_episodes))))
    spent = time.process_time() - started
    await router.close()
    return spent / num_episodes * 1e6


def growth() -> list[dict[str, Any]]:
    """Both costs at every size."""
    found = []
    for num_replicas, num_episodes in SCALES:
        found.append(
            {
                "replicas": num_replicas,
                "episodes": num_episodes,
                "bookkeeping_us_per_episode": round(bookkeeping(num_replicas, num_episodes), 1),
            }
        )
        print(found[-1], flush=True)
    for row in found:
        row["router_us_per_episode"] = round(asyncio.run(whole_router(row["replicas"], 2_000)), 1)
        print(row, flush=True)
    return found


def main() -> None:
    """Measure, print and write."""
    out = options(__doc__, "router").parse_args().out
    shares, costs = cache(), growth()
    times = [row["bookkeeping_us_per_episode"] for row in costs]
    verdict = {
        "share_of_ideal_hits": min(row["share_of_ideal_hits"] for row in shares),
        "goal_share": GOAL,
        "slowest_over_fastest": round(max(times) / min(times), 2),
        "goal_slowest_over_fastest": FLAT,
    }
    sizes = {"turns": TURNS, "in_flight": IN_FLIGHT, "episodes": EPISODES}
    write(out, {"workload": sizes, "cache": shares, "growth": costs, "verdict": verdict})
    print(verdict)


if __name__ == "__main__":
    main()
