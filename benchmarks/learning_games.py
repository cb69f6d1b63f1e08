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

import argparse
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controls import rejection_sampling, temperatures
from learning import (
    beyond_controls,
    greedy,
    interval,
    is_flat,
    run_all,
    run_training,
    write_report,
)

from ajet.environments.guess_number import GuessNumber

ROOT = Path(__file__).parents[1]
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
            section = "ajet.trainer_common"
            return [f"{section}.optim.lr=0.0", f"{section}.total_training_steps=20"]
        if arm == "learn":
            return []
        agent = f"ajet.environment.custom_envs.{self.tag}.env_manager_cls=shuffled_{self.agent}"
        return [f"ajet.rollout.agent_modules=[{SHUFFLED_AGENTS}]", agent]

    def has_learnt(self, run: dict[str, Any]) -> bool:
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


def run(name: str, arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run, and what its summary says."""
    experiment, about = f"{name}-{arm}-{seed}", {"game": name, "arm": arm, "seed": seed}
    if arm == "rejection":
        return {**about, **rejection_sampling(conf(name), folder, experiment, seed)}
    arguments = [*conf(name), *GAMES[name].overrides(arm)]
    return {**about, **run_training(arguments, folder, experiment, seed)}


def conf(name: str) -> list[str]:
    return ["--conf", str(ROOT / f"tutorial/example_{name}/demo.yaml")]


def verdict(runs: list[dict[str, Any]], start: dict[str, dict[str, float]]) -> dict[str, Any]:
    """What the runs show, one entry a game and arm; `start` is the success of each game's start
    model by temperature."""
    shown: dict[str, Any] = {}
    for name, arm in dict.fromkeys((run["game"], run["arm"]) for run in runs):
        found = [run for run in runs if (run["game"], run["arm"]) == (name, arm)]
        of_game = shown.setdefault(name, {"temperatures": start.get(name, {})})
        if arm == "rejection":
            of_game[arm] = {"greedy": [greedy(run) for run in found]}
            learnt = [run for run in runs if (run["game"], run["arm"]) == (name, "learn")]
            if added := beyond_controls(learnt, found, of_game["temperatures"]):
                of_game["adds"] = interval(added)
            continue
        changes = [run["success_after"] - run["success_before"] for run in found]
        entry: dict[str, Any] = {"changes": changes, **interval(changes)}
        if all("success_by_decoding" in run for run in found):
            entry["greedy"] = interval([greedy(run) - greedy(run, "before") for run in found])
        if arm == "learn":
            entry["goal"] = GAMES[name].goal
            entry["seeds_that_learn"] = sum(map(GAMES[name].has_learnt, found))
            entry["passed"] = entry["seeds_that_learn"] == len(found)
        elif len(changes) > 1:
            entry["passed"] = is_flat(arm, entry)
        of_game[arm] = entry
    return shown


def kept_runs(out: Path, begun: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """The runs of the file that are not run again."""
    if not out.exists():
        return []
    runs = json.loads(out.read_text())["runs"]
    return [run for run in runs if (run["game"], run["arm"], run["seed"]) not in begun]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--games", nargs="*", choices=list(GAMES), default=list(GAMES))
    parser.add_argument("--only", nargs="*", choices=ARMS, default=list(ARMS), help="arms")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0, help="those before it are kept")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/learning_games.json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-games-"))
    seeds = range(args.first_seed, args.seeds)
    wanted = [(g, a, s) for g in args.games for a in args.only for s in seeds]
    runs = kept_runs(args.out, wanted)
    known = json.loads(args.out.read_text())["verdict"] if args.out.exists() else {}
    start = {name: known[name].get("temperatures", {}) for name in known}
    start |= {name: temperatures(conf(name), folder) for name in args.games}
    order = (list(GAMES), ARMS)

    def write() -> None:
        runs.sort(key=lambda r: (order[0].index(r["game"]), order[1].index(r["arm"]), r["seed"]))
        write_report(args.out, verdict(runs, start), runs)

    run_all(run, [(*each, folder) for each in wanted], args.workers, runs, write)
    shutil.rmtree(folder)
    print(json.dumps(verdict(runs, start), indent=2))


if __name__ == "__main__":
    main()
