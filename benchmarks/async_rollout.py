"""Explorer and trainer at the same time against taking turns, with tools of log-normal latencies.

    python -m benchmarks.async_rollout [--out FILE.json]

Both run the real explorer, trainer and buffer on a clock that jumps to the next event: an episode
is `TURNS` calls of `CALL` and tools of exp(N(0, 1)), an update takes `UPDATE`. So the machine's
load changes nothing; what the code itself costs is told apart, in milliseconds of CPU a group.

In turns (a bound of 0) a step is its slowest episode and then its update: that is the order of a
synchronous backbone. Two limits are computed from the same draws:

of the bound   step n trains the batch that begins when the weights of step n - bound are there.
               (Groups of one age may change places: a step that takes those which ended first can
               be a little faster than this.)
of any bound   the trainer never waits

Goal: at least 90 % of the speed-up that the bound allows, no token older than it, nothing dropped,
and the same episodes, so the same reward a sample. A reward is a draw of the episode's own seed: it
does not depend on the weights here (learning is for benchmarks/learning.py).
"""

from __future__ import annotations

import asyncio
import json
import selectors
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from ajet.backbones.disaggregated.explorer import Explorer, ExplorerSettings, VersionState
from ajet.backbones.disaggregated.trainer import Trainer
from ajet.core.buffer.buffer import GroupBuffer
from ajet.core.buffer.staleness import StalenessBound, version_range
from ajet.core.config import AjetConfig
from ajet.core.inference.endpoint import Completion
from ajet.core.rollout.admission import Admission, Slot
from ajet.core.rollout.batch import BatchRollout, BatchSettings, StepGroups
from ajet.core.rollout.episode import JudgeInGroup
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.limits import RolloutLimits
from ajet.core.rollout.request import RolloutRequest
from ajet.core.rollout.stops import Stop
from ajet.core.seeding import derive
from ajet.core.task.cursor import DataCursor
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.core.user_code.activity import CurrentCall
from benchmarks.report import options, write

GROUPS, MEMBERS, TURNS, STEPS = 8, 4, 5, 40
CALL, UPDATE = 0.2, 14.0
BOUNDS, DRAWS = (1, 2, 4), 3
GOAL = 0.9


class JumpingSelector(selectors.SelectSelector):
    """Where the loop would sleep, the clock jumps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with that clock; what goes to a thread is done at once."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()
        future.set_result(func(*args))
        return future


def run(main: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)


def latencies(draw: int, plan: WorkflowTask) -> np.ndarray:
    """Of the tools of one episode, whoever runs it and when."""
    rng = np.random.default_rng(derive("async rollout", draw, plan.episode_id))
    return rng.lognormal(0.0, 1.0, TURNS)


def reward(draw: int, plan: WorkflowTask) -> float:
    return float(np.random.default_rng(derive("reward", draw, plan.episode_id)).random())


@dataclass
class SimulatedEpisodes:
    """Episodes that sleep; turns are stamped with the weights of their moment."""

    versions: VersionState
    draw: int
    num_running: int = 0
    most_running: int = 0

    async def run(
        self,
        plan: WorkflowTask,
        slot: Slot,
        judge_in_group: JudgeInGroup | None = None,
    ) -> Trajectory:
        self.num_running += 1
        self.most_running = max(self.most_running, self.num_running)
        turns = []
        for latency in latencies(self.draw, plan):
            version = self.versions.published
            assert version is not None
            turns.append(_turn(version))
            await asyncio.sleep(CALL + latency)
        self.num_running -= 1
        slot.workflow_ended(EpisodeStatus.OK)
        earned = reward(self.draw, plan)
        return Trajectory(plan, tuple(turns), EpisodeStatus.OK, WorkflowOutput(earned), earned)

    def calls(self) -> dict[str, CurrentCall]:
        return {}

    def stop(self, episode_id: str, stop: Stop) -> bool:
        return False

    def set_stops(self, stops: Mapping[str, Stop]) -> None:
        return


def _turn(version: int) -> Turn:
    completion = Completion((1, 2), (3, 4), (-0.5, -0.5), "stop", version)
    return Turn(completion, [], None, {"role": "assistant", "content": ""})


class SimulatedTrainer:
    """An update takes its time; publishing none."""

    async def train(self, step: int, groups: Sequence[Group]) -> tuple[Any, dict[str, float]]:
        await asyncio.sleep(UPDATE)
        return None, {}

    async def publish(self, version: int) -> dict[str, float]:
        return {}


@dataclass
class Tally:
    """In the place of a `TrainingRun`: counts what was trained."""

    tasks: Any = field(default_factory=lambda: SimpleNamespace(total_steps=STEPS))
    config: AjetConfig = field(default_factory=AjetConfig)
    state: Any = field(default_factory=lambda: SimpleNamespace(step=0, staleness={}))
    groups: list[tuple[int, Group]] = field(default_factory=list)

    def steps_left(self) -> Iterator[int]:
        while self.state.step < self.tasks.total_steps:
            yield self.state.step + 1

    def rollout_done(self, step: int, rollout: StepGroups) -> None:
        self.groups += [(step, group) for group in rollout.groups]

    def record_step(
        self, step: int, rollout: StepGroups, update: Any, metrics: dict[str, float]
    ) -> None:
        self.state.step = step

    async def save_if_due(self) -> None: ...

    async def save_if_new(self) -> None: ...


async def no_validation() -> None: ...


async def simulate(bound: StalenessBound, draw: int) -> dict[str, Any]:
    """One run, in simulated seconds."""
    versions, buffer, tally = VersionState(0), GroupBuffer("sqlite://", bound), Tally()
    episodes = SimulatedEpisodes(versions, draw)
    runner = GroupRunner(episodes, Admission(10_000), limits=RolloutLimits(), run_seed=0)
    tasks = [Task(f"t{n}", "?") for n in range(1000)]
    cursor = DataCursor(len(tasks), GROUPS, seed=0, shuffle=False)
    options = ExplorerSettings(BatchSettings(GROUPS, MEMBERS), STEPS, 0.5)
    batch = BatchRollout(runner, tasks, cursor, options.batch)
    explorer = Explorer(batch, runner.admission, cursor, buffer, versions, options)
    stand_ins: Any = (SimulatedTrainer(), buffer, versions, tally, no_validation, explorer)
    trainer = Trainer(*stand_ins)
    loop, cpu_s = asyncio.get_running_loop(), time.process_time()
    exploring = asyncio.create_task(explorer.run())
    await trainer.run()
    seconds = loop.time()
    versions.end()
    await exploring
    buffer.close()
    cpu_s = time.process_time() - cpu_s
    trained = [(step, group) for step, group in tally.groups if group.valid]
    rewards = [t.reward for _, group in trained for t in group.valid if t.reward is not None]
    oldest = [step - 1 - found[0] for step, group in trained if (found := version_range(group))]
    return {
        "seconds": round(seconds, 2),
        "samples": len(rewards),
        "reward_per_sample": round(float(np.mean(rewards)), 4),
        "oldest": max(oldest),
        "expired": len(tally.groups) - len(trained),
        "episodes_at_once": episodes.most_running,
        "cpu_ms_per_group": round(1000 * cpu_s / len(tally.groups), 2),
        "histogram": dict(sorted(tally.state.staleness.items())),
        "groups": sorted(group.group_id for _, group in trained),
    }


def slowest_of_batches(draw: int) -> list[float]:
    """The time of each step's slowest episode."""
    found = []
    for step in range(1, STEPS + 1):
        tasks = [Task("t", "?")] * GROUPS
        plans = RolloutRequest(tasks, step, "train", MEMBERS).plans(run_seed=0)
        found.append(max(float((latencies(draw, p) + CALL).sum()) for p in plans))
    return found


def least_time(slowest: Sequence[float], bound: int) -> float:
    """When the last update ends, if a batch begins `bound` versions before it is trained."""
    ends: list[float] = []
    for step, seconds in enumerate(slowest):
        begins = ends[step - bound - 1] if step > bound else 0.0
        ends.append(max(begins + seconds, ends[-1] if ends else 0.0) + UPDATE)
    return ends[-1]


def measure(bound: int, draw: int) -> dict[str, Any]:
    slowest = slowest_of_batches(draw)
    turns = run(simulate(StalenessBound(0, GROUPS), draw))
    both = run(simulate(StalenessBound(bound, GROUPS, 1, bound * GROUPS), draw))
    assert both["oldest"] <= bound and both["expired"] == 0
    assert both["groups"] == turns["groups"]
    in_turns, ratio = least_time(slowest, 0), turns["seconds"] / both["seconds"]
    limits = in_turns / least_time(slowest, bound), in_turns / (STEPS * UPDATE)
    same = ("samples", "reward_per_sample")
    assert [both[key] for key in same] == [turns[key] for key in same]
    return {
        "ratio": round(ratio, 3),
        "limit": round(limits[0], 3),
        "limit_of_any_bound": round(limits[1], 3),
        "of_limit": round(ratio / limits[0], 4),
        "of_limit_of_any_bound": round(ratio / limits[1], 4),
        "seconds_in_turns": turns["seconds"],
        **{key: value for key, value in both.items() if key != "groups"},
    }


def shown(bound: int, draws: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean over the draws, and the worst of them."""
    means = {
        key: round(float(np.mean([each[key] for each in draws])), 3)
        for key in ("ratio", "limit", "limit_of_any_bound", "cpu_ms_per_group")
    }
    worst = {k: min(each[k] for each in draws) for k in ("of_limit", "of_limit_of_any_bound")}
    histogram = sum((Counter(each["histogram"]) for each in draws), Counter())
    shares = {age: round(histogram[age] / histogram.total(), 4) for age in sorted(histogram)}
    return {"max_staleness": bound, **means, **worst, "ages": shares, "draws": draws}


def main() -> None:
    args = options(__doc__, "async_rollout").parse_args()
    results = []
    for bound in BOUNDS:
        results.append(shown(bound, [measure(bound, draw) for draw in range(DRAWS)]))
        print(json.dumps({key: value for key, value in results[-1].items() if key != "draws"}))
        for age, share in results[-1]["ages"].items():
            print(f"  {age} updates old  {share:6.1%}  {'#' * round(60 * share)}")
    sizes = {"groups": GROUPS, "members": MEMBERS, "turns": TURNS, "steps": STEPS}
    times = {"sigma": 1.0, "call": CALL, "update": UPDATE, "goal_of_limit": GOAL}
    passed = all(run["of_limit"] >= GOAL for run in results)
    write(args.out, {**sizes, **times, "passed": passed, "results": results})


if __name__ == "__main__":
    main()
