"""GRPO, PPO with a critic and GiGPO on FrozenLake, side by side in one plot.

    python benchmarks/frozen_lake_algorithms.py                     # nine runs
    python benchmarks/frozen_lake_algorithms.py --seeds 1 --only gigpo --out one.json
    python benchmarks/frozen_lake_algorithms.py --plot              # draws the JSON, runs nothing

Each run is the tutorial's own command with another estimator; model, lakes, batch, learning rate
and KL are the same. Each is validated every ten steps. An episode of training counts one, for each
of them: the critic reads the same episodes. What is compared is how many episodes it takes until a
validation reaches 0.70 and 0.85, or that none does within the run.
"""

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from report import ROOT, read
from runs import TRAINER, Run, by, logged, run_all, run_options, run_training

CONF = ROOT / "tutorial/example_frozen_lake/demo.yaml"
ALGORITHM = f"{TRAINER}.algorithm"
ARMS: dict[str, list[str]] = {
    "grpo": [f"{ALGORITHM}.adv_estimator=grpo"],
    "ppo": [
        f"{ALGORITHM}.adv_estimator=gae",
        f"{ALGORITHM}.lam=0.95",
        f"{TRAINER}.critic.lr=1.0e-3",
        f"{TRAINER}.critic.mini_batch_num=2",
    ],
    "gigpo": [],
}
NAMES = {"grpo": "GRPO", "ppo": "PPO, with a critic", "gigpo": "GiGPO"}
COLOURS = {"grpo": "#8c6d31", "ppo": "#3b6ea8", "gigpo": "#2c8c5a"}
LEVELS = (0.70, 0.85)


AXES = {"only": ("arm", list(ARMS))}


def run(arm: str, seed: int, folder: Path, steps: int) -> Run:
    """One run's held-out success by episodes of training."""
    arguments = ["--conf", str(CONF), f"{TRAINER}.total_training_steps={steps}"]
    arguments += [f"{TRAINER}.test_freq=10", *ARMS[arm]]
    found = run_training(arguments, folder, f"{arm}-{seed}", seed)
    a_step = found["episodes"] // found["steps"]
    curve = [
        {"episodes": each["step"] * a_step, "success": each["held_out/success"]}
        for each in logged(folder / f"{arm}-{seed}")
        if "held_out/success" in each
    ]
    levels = {f"{level:.2f}": reached(curve, level) for level in LEVELS}
    return {"curve": curve, "reached": levels, "wall_seconds": found["wall_seconds"]}


def reached(curve: list[dict[str, Any]], level: float) -> int | None:
    """Episodes until the first validation at or above the level."""
    return next((at["episodes"] for at in curve if at["success"] >= level), None)


def verdict(runs: list[Run]) -> dict[str, Any]:
    """Median episodes to each level by arm; a run that never got there counts as the longest."""
    shown: dict[str, Any] = {}
    for arm, of_arm in by("arm", runs).items():
        shown[arm] = {
            level: {
                "runs_that_reach_it": sum(each["reached"][level] is not None for each in of_arm),
                "median_episodes": median([each["reached"][level] for each in of_arm]),
            }
            for level in of_arm[0]["reached"]
        }
        shown[arm]["last_success"] = [each["curve"][-1]["success"] for each in of_arm]
    if {"grpo", "gigpo"} <= shown.keys():
        shown["gigpo_needs_fewer_than_grpo"] = {
            level: fewer(shown["gigpo"][level], shown["grpo"][level])
            for level in (f"{level:.2f}" for level in LEVELS)
        }
    return shown


def median(counts: Sequence[int | None]) -> int | None:
    """None where the run in the middle did not get there."""
    middle = statistics.median_high([float("inf") if c is None else c for c in counts])
    return None if middle == float("inf") else int(middle)


def fewer(one: dict[str, Any], other: dict[str, Any]) -> bool:
    mine, theirs = one["median_episodes"], other["median_episodes"]
    return mine is not None and (theirs is None or mine < theirs)


def plot(runs: list[Run], out: Path) -> None:
    """A thin line for each run, a thick one for the mean of an arm's."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "frozen_lake"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0))
    for arm, of_arm in by("arm", runs).items():
        curves = [each["curve"] for each in of_arm]
        episodes = [at["episodes"] for at in curves[0]]
        values = [[at["success"] for at in curve] for curve in curves]
        for each in values:
            axes.plot(episodes, each, color=COLOURS[arm], alpha=0.3, linewidth=0.8)
        mean = [statistics.fmean(column) for column in zip(*values, strict=True)]
        axes.plot(episodes, mean, color=COLOURS[arm], linewidth=2.2, label=NAMES[arm])
    for level in LEVELS:
        axes.axhline(level, color="#999999", linewidth=0.6, linestyle=":")
    axes.set(xlabel="episodes of training", ylabel="success on held-out lakes", ylim=(0, 1))
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    parser = run_options(__doc__, "frozen_lake_algorithms", AXES, seeds=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--plot", action="store_true", help="draw what there is, run nothing")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/frozen_lake_algorithms.svg")
    args = parser.parse_args()
    if args.plot:
        runs = read(args.out)["runs"]
    else:
        runs = run_all(args, AXES, partial(run, steps=args.steps), verdict)
    plot(runs, args.picture)


if __name__ == "__main__":
    main()
