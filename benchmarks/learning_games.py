"""Do the games' tutorials learn, and only when they should? Three games, five seeds, four controls.

    python benchmarks/learning_games.py                                # some hours of one core
    python benchmarks/learning_games.py --games countdown --seeds 1 --only learn --out one.json

Each run is a tutorial's own command in a process of its own, with held-out instances before and
after:

    learn       frozen_lake from <= 0.20 to >= 0.85, guess_number to >= 0.95 of the optimal policy,
                countdown to >= 0.90, each in <= 600 s of one thread
    shuffled    rewards are those of other episodes of the run (shuffled_agents.py): the interval of
                the change holds 0
    lr0         learning rate 0, for 20 steps (nothing moves, however long): the same
    rejection   controls.py; so is `temperatures`, measured once a game

The unit is the run: a change's 95 % interval is Student's over the seeds. `cpu_seconds` is what a
run took of the processor, all told; `wall_seconds` is the run's own, from the start of training.
Results of other games and arms in the file are kept.
"""

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from controls import rejection_sampling, temperatures
from report import ROOT, read
from runs import TRAINER, Run, arms_verdict, by, run_all, run_options, run_training

from ajet.environments.guess_number import GuessNumber

SHUFFLED_AGENTS = Path(__file__).with_name("shuffled_agents.py")
ARMS = ("learn", "shuffled", "lr0", "rejection")
MOST_SECONDS = 600
OPTIMUM = GuessNumber(high=20, max_guesses=5).optimal_success()


@dataclass(frozen=True)
class Game:
    """A tutorial and what it promises."""

    tag: str
    agent: str
    goal: float
    most_before: float = 1.0

    def overrides(self, arm: str) -> list[str]:
        if arm == "lr0":
            return [f"{TRAINER}.optim.lr=0.0", f"{TRAINER}.total_training_steps=20"]
        if arm == "learn":
            return []
        agent = f"ajet.environment.custom_envs.{self.tag}.env_manager_cls=shuffled_{self.agent}"
        return [f"ajet.rollout.agent_modules=[{SHUFFLED_AGENTS}]", agent]

    def has_learnt(self, run: Run) -> bool:
        return (
            run["success_before"] <= self.most_before
            and run["success_after"] >= self.goal
            and run["num_held_out"] >= 200
            and run["wall_seconds"] <= MOST_SECONDS
        )


GAMES = {
    "frozen_lake": Game("FrozenLake4", "step_env_agent", 0.85, most_before=0.20),
    "guess_number": Game("GuessNumber20", "step_env_agent", 0.95 * OPTIMUM),
    "countdown": Game("Countdown2", "traj_env_agent", 0.90),
}


AXES = {"games": ("game", list(GAMES)), "only": ("arm", ARMS)}


def run(name: str, arm: str, seed: int, folder: Path) -> Run:
    """One training run, and what its summary says."""
    experiment = f"{name}-{arm}-{seed}"
    if arm == "rejection":
        return rejection_sampling(conf(name), folder, experiment, seed)
    return run_training([*conf(name), *GAMES[name].overrides(arm)], folder, experiment, seed)


def conf(name: str) -> list[str]:
    return ["--conf", str(ROOT / f"tutorial/example_{name}/demo.yaml")]


def verdict(runs: list[Run], start: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What the runs show, one entry a game and arm; `start` is the success of each game's start
    model by temperature."""
    shown: dict[str, Any] = {}
    for name, of_game in by("game", runs).items():
        shown[name] = arms_verdict(of_game, start.get(name, {}), GAMES[name].has_learnt)
        if "learn" in shown[name]:
            shown[name]["learn"]["goal"] = GAMES[name].goal
    return shown


def main() -> None:
    args = run_options(__doc__, "learning_games", AXES).parse_args()
    known = read(args.out).get("verdict", {})
    start = {name: known[name].get("temperatures", {}) for name in known}
    with tempfile.TemporaryDirectory(prefix="ajet-") as folder:
        start |= {name: temperatures(conf(name), Path(folder)) for name in args.games}
    run_all(args, AXES, run, partial(verdict, start=start))


if __name__ == "__main__":
    main()
