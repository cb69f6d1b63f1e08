"""Environment steps a second: what ajet's side of a step costs beside the environment's own.

    python benchmarks/environment_steps.py [--episodes 2000] [--out FILE.json]

    bare     make, reset, step … of the environment itself
    live     the same through live.py: awaited, and what is returned is checked
    played   and with the agent's bookkeeping: the action read from a reply, rewards, state keys,
             metrics, the trace, the episode's output
    shown    played, with each step's message filled from its template as well

The same seeds and the same actions (the oracle's and random ones, episode by episode) in each. CPU
seconds of the process; the ways take turns every few episodes, so that what else the machine does
meets all of them; the ratio is the median over rounds. Garbage is collected as a rollout collects
it. Goal: played at least 80 % of bare. No model, no recorder: what those cost an episode is in
rollout_scheduling.py.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

from report import options, write

from ajet.agents.environment_agent import LARGEST_SEED, EnvironmentEpisode
from ajet.agents.environment_settings import EnvironmentSettings, settings_for
from ajet.agents.traj_env_agent import TrajEnvAgent
from ajet.core.config.tree import AjetConfig
from ajet.core.rollout.gc_thresholds import infrequent_gc
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask

GAMES = {"frozen_lake": {}, "sokoban": {}, "guess_number": {}}
GOAL, ROUNDS, TURN, MAX_STEPS = 0.8, 7, 20, 20
Episode = tuple[WorkflowTask, list[str]]


def config() -> AjetConfig:
    envs = {
        name: {"env_type": name, "env_config": given, "max_steps": MAX_STEPS}
        for name, given in GAMES.items()
    }
    return AjetConfig.model_validate({"ajet": {"environment": {"custom_envs": envs}}})


def episodes_of(settings: EnvironmentSettings, num: int) -> list[Episode]:
    """Tasks, and actions that end each of them or fill its steps."""
    drawn = []
    for number in range(num):
        task = task_of(settings.tag, number)
        environment, rng = settings.maker(), random.Random(number)
        environment.reset(task.seed % LARGEST_SEED, {"split": "train"})
        actions: list[str] = []
        is_over = False
        while not is_over and len(actions) < MAX_STEPS:
            knows = number % 2 == 0 and environment.oracle_action()
            actions.append(knows or environment.sample_action(rng))
            _, _, terminated, truncated, _ = environment.step(actions[-1])
            is_over = terminated or truncated
        drawn.append((task, actions))
    return drawn


def task_of(tag: str, number: int) -> WorkflowTask:
    task = Task(f"{tag}-{number:04d}", "", metadata={"tag": tag})
    return WorkflowTask(task, f"e{number}", f"g-{number}", 0, 0, "train", number)


async def bare(settings: EnvironmentSettings, episodes: list[Episode]) -> None:
    for task, actions in episodes:
        environment = settings.maker()
        environment.reset(task.seed % LARGEST_SEED, {"split": "train"})
        for action in actions:
            environment.step(action)
        environment.close()


async def live(settings: EnvironmentSettings, episodes: list[Episode]) -> None:
    for task, actions in episodes:
        async with settings.open() as environment:
            await environment.reset(task.seed % LARGEST_SEED, {"split": "train"})
            for action in actions:
                await environment.step(action)


async def played(
    settings: EnvironmentSettings, episodes: list[Episode], is_shown: bool = False
) -> None:
    for task, actions in episodes:
        found = settings_for(CONFIG, task, TrajEnvAgent.template)
        async with found.open() as environment:
            episode = EnvironmentEpisode(found, environment)
            await episode.begin(task)
            for action in actions:
                if is_shown:
                    episode.user()
                await episode.answer(f"<answer>{action}</answer>")
        episode.output()


async def shown(settings: EnvironmentSettings, episodes: list[Episode]) -> None:
    await played(settings, episodes, is_shown=True)


WAYS: dict[str, Callable[[EnvironmentSettings, list[Episode]], Awaitable[None]]] = {
    "bare": bare,
    "live": live,
    "played": played,
    "shown": shown,
}
CONFIG = config()


async def measured(name: str, num_episodes: int) -> dict[str, Any]:
    settings = settings_for(CONFIG, task_of(name, 0), TrajEnvAgent.template)
    episodes = episodes_of(settings, num_episodes)
    num_steps = sum(len(actions) for _, actions in episodes)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with infrequent_gc():
        for _ in range(ROUNDS):
            for way, took in (await _round(settings, episodes)).items():
                seconds[way].append(took)
    return {
        "steps": num_steps,
        "steps_a_second": {way: num_steps / median(took) for way, took in seconds.items()},
        "ratio": {way: _ratio(seconds["bare"], seconds[way]) for way in WAYS},
    }


async def _round(settings: EnvironmentSettings, episodes: list[Episode]) -> dict[str, float]:
    """Seconds of each way over all episodes, in turns of a few."""
    took = dict.fromkeys(WAYS, 0.0)
    for start in range(0, len(episodes), TURN):
        for way, run in WAYS.items():
            started_s = time.process_time()
            await run(settings, episodes[start : start + TURN])
            took[way] += time.process_time() - started_s
    return took


def _ratio(bare_s: list[float], other_s: list[float]) -> float:
    return median(one / other for one, other in zip(bare_s, other_s, strict=True))


def main() -> None:
    given = options(__doc__, "environment_steps", episodes=2000).parse_args()
    found = {name: asyncio.run(measured(name, given.episodes)) for name in GAMES}
    told = {"goal": GOAL, "rounds": ROUNDS, "episodes": given.episodes}
    write(given.out, {**told, "environments": found})
    for name, figures in found.items():
        ratios = ", ".join(f"{way} {share:.1%}" for way, share in figures["ratio"].items())
        rates = ", ".join(f"{w} {r:,.0f}" for w, r in figures["steps_a_second"].items())
        print(f"{name}: steps a second: {rates}; of bare: {ratios}")


if __name__ == "__main__":
    main()
