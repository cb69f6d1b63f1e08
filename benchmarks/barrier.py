"""Asynchronous rollout against a barrier at each turn, with tools that take log-normal times.

    python benchmarks/barrier.py [--median-s 0.2] [--out FILE.json]

Each episode alternates a call of the scripted engine, which answers at once, and a tool that takes
`median_s` x exp(N(0, 1)) seconds (`asyncio.sleep`). All episodes run at the same time. With the
barrier, every episode waits after its tool until all others have theirs.

The computed limit counts the tools alone: the sum over turns of the slowest tool of the turn,
against the largest sum of one episode's own tools. Goal: at least 90 % of it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measuring import scripted_runner
from numpy.typing import NDArray
from report import options, write

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.inference.chat_template import ChatTemplate
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.seeding import derive
from ajet.engines.scripted import ScriptedEngine

GROUP = 8
EPISODES, TURNS, DRAWS = (64, 256), (5, 10), 3
GOAL = 0.9
PROMPT_IDS = list(range(10, 90))
Seconds = NDArray[np.float64]


class Waits(Workflow):
    """A call and a tool, `turns` times; `barrier` has everybody wait after each tool."""

    latencies_ET: Seconds
    barrier: asyncio.Barrier | None = None

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        place = workflow_task.task_batch_index * GROUP + workflow_task.rollout_index
        for latency_s in self.latencies_ET[place]:
            await model_tuner.generate(PROMPT_IDS, max_tokens=8)
            await asyncio.sleep(latency_s)
            if self.barrier is not None:
                await self.barrier.wait()
        return WorkflowOutput(reward=1.0)


def runner(workflow: Callable[[], Workflow], template: ChatTemplate, at_once: int) -> GroupRunner:
    script = [*range(40, 44), template.stop_token_ids[0]]
    engine = ScriptedEngine(lambda prompt_ids, sampling, request_id: script)
    return scripted_runner(workflow, template, engine, RolloutLimits(max_env_worker=at_once))


async def timed(latencies_ET: Seconds, template: ChatTemplate, *, with_barrier: bool) -> float:
    """Seconds of one rollout."""
    num = len(latencies_ET)
    shared = asyncio.Barrier(num) if with_barrier else None
    kind = type("Waits", (Waits,), {"latencies_ET": latencies_ET, "barrier": shared})
    tasks = [Task(f"t{i}", "wait") for i in range(num // GROUP)]
    started = time.perf_counter()
    groups = await runner(kind, template, num).rollout(
        RolloutRequest(tasks, step=0, mode="train", num_repeat=GROUP)
    )
    seconds = time.perf_counter() - started
    assert all(len(group.valid) == GROUP for group in groups)
    return seconds


async def measure(
    episodes: int, turns: int, draw: int, median_s: float, template: ChatTemplate
) -> dict[str, Any]:
    """One draw of latencies, both ways."""
    rng = np.random.default_rng(derive("barrier", episodes, turns, draw))
    latencies_ET = median_s * rng.lognormal(0.0, 1.0, (episodes, turns))
    asynchronous_s = await timed(latencies_ET, template, with_barrier=False)
    barrier_s = await timed(latencies_ET, template, with_barrier=True)
    longest_s = float(latencies_ET.sum(axis=1).max())
    limit = float(latencies_ET.max(axis=0).sum()) / longest_s
    ratio = barrier_s / asynchronous_s
    return {
        "asynchronous_s": round(asynchronous_s, 3),
        "barrier_s": round(barrier_s, 3),
        "longest_episode_s": round(longest_s, 3),
        "ratio": round(ratio, 3),
        "limit": round(limit, 3),
        "of_limit": round(ratio / limit, 4),
        "of_longest_episode": round(longest_s / asynchronous_s, 4),
    }


async def all_shapes(median_s: float, template: ChatTemplate) -> list[dict[str, Any]]:
    results = []
    for episodes in EPISODES:
        for turns in TURNS:
            draws = [
                await measure(episodes, turns, draw, median_s, template) for draw in range(DRAWS)
            ]
            means = {
                key: round(float(np.mean([each[key] for each in draws])), 3)
                for key in ("ratio", "limit")
            }
            worst = {
                key: min(each[key] for each in draws) for key in ("of_limit", "of_longest_episode")
            }
            results.append({"episodes": episodes, "turns": turns, **means, **worst, "draws": draws})
            print(json.dumps(results[-1] | {"draws": len(draws)}))
    return results


def main() -> None:
    parser = options(__doc__, "barrier", median_s=0.2)
    parser.add_argument("--model", type=Path, default=Path("ajet/embedded/math"))
    args = parser.parse_args()
    from transformers import AutoTokenizer

    template = ChatTemplate(AutoTokenizer.from_pretrained(args.model))
    results = asyncio.run(all_shapes(args.median_s, template))
    passed = all(run["of_limit"] >= GOAL for run in results)
    told = {"median_s": args.median_s, "sigma": 1.0, "goal_of_limit": GOAL, "passed": passed}
    write(args.out, {**told, "results": results})


if __name__ == "__main__":
    main()
