"""GRPO, PPO with a critic and GiGPO on FrozenLake, side by side in one plot.

    python benchmarks/frozen_lake_algorithms.py                     # nine runs
    python benchmarks/frozen_lake_algorithms.py --seeds 1 --only gigpo --out one.json
    python benchmarks/frozen_lake_algorithms.py --plot              # draws the JSON, runs nothing

Each run is the tutorial's own command with another estimator; model, lakes, batch, learning rate
and KL are the same. Each is validated every ten steps. An episode of training counts one, for each
of them: the critic reads the same episodes. What is compared is how many episodes it takes until a
validation reaches 0.70 and 0.85, or that none does within the run.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONF = ROOT / "tutorial/example_frozen_lake/demo.yaml"
ALGORITHM = "ajet.trainer_common.algorithm"
ARMS: dict[str, list[str]] = {
    "grpo": [f"{ALGORITHM}.adv_estimator=grpo"],
    "ppo": [
        f"{ALGORITHM}.adv_estimator=gae",
        f"{ALGORITHM}.lam=0.95",
        "ajet.trainer_common.critic.lr=1.0e-3",
        "ajet.trainer_common.critic.mini_batch_num=2",
    ],
    "gigpo": [],
}
NAMES = {"grpo": "GRPO", "ppo": "PPO, with a critic", "gigpo": "GiGPO"}
COLOURS = {"grpo": "#8c6d31", "ppo": "#3b6ea8", "gigpo": "#2c8c5a"}
LEVELS = (0.70, 0.85)


def run(arm: str, seed: int, steps: int, folder: Path) -> dict[str, Any]:
    """One run's held-out success by episodes of training."""
    name = f"{arm}-{seed}"
    command = [
        sys.executable,
        "-m",
        "ajet.cli.launcher",
        "--conf",
        str(CONF),
        "--backbone",
        "debug",
    ]
    command += ["--exp-dir", str(folder), f"ajet.experiment_name={name}", f"ajet.seed={seed}"]
    command += [f"ajet.trainer_common.total_training_steps={steps}"]
    command += ["ajet.trainer_common.test_freq=10"]
    subprocess.run(command + ARMS[arm], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    summary = json.loads((folder / name / "summary.json").read_text())
    a_step = summary["episodes"] // summary["steps"]
    lines = (folder / name / "logs/metrics.jsonl").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    curve = [
        {"episodes": each["step"] * a_step, "success": each["held_out/success"]}
        for each in logged
        if "held_out/success" in each
    ]
    return {
        "arm": arm,
        "seed": seed,
        "curve": curve,
        "reached": {f"{level:.2f}": reached(curve, level) for level in LEVELS},
        "wall_seconds": summary["wall_seconds"],
    }


def reached(curve: list[dict[str, Any]], level: float) -> int | None:
    """Episodes until the first validation at or above the level."""
    return next((at["episodes"] for at in curve if at["success"] >= level), None)


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median episodes to each level by arm; a run that never got there counts as the longest."""
    shown: dict[str, Any] = {}
    for arm in dict.fromkeys(each["arm"] for each in runs):
        of_arm = [each for each in runs if each["arm"] == arm]
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


def plot(runs: list[dict[str, Any]], out: Path) -> None:
    """A thin line for each run, a thick one for the mean of an arm's."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "frozen_lake"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.0))
    for arm in dict.fromkeys(each["arm"] for each in runs):
        curves = [each["curve"] for each in runs if each["arm"] == arm]
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


def write(runs: list[dict[str, Any]], out: Path) -> None:
    runs.sort(key=lambda each: (list(ARMS).index(each["arm"]), each["seed"]))
    report = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "verdict": verdict(runs),
        "runs": runs,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")


def kept_runs(out: Path) -> list[dict[str, Any]]:
    return json.loads(out.read_text())["runs"] if out.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--only", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--plot", action="store_true", help="draw what there is, run nothing")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/frozen_lake_algorithms.json"
    )
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/frozen_lake_algorithms.svg")
    args = parser.parse_args()
    if args.plot:
        plot(kept_runs(args.out), args.picture)
        return
    folder = Path(tempfile.mkdtemp(prefix="ajet-frozen-lake-"))
    runs = [each for each in kept_runs(args.out) if each["arm"] not in args.only]
    for seed in range(args.seeds):
        for arm in args.only:
            runs.append(run(arm, seed, args.steps, folder))
            print({key: runs[-1][key] for key in ("arm", "seed", "reached")}, flush=True)
            write(runs, args.out)
    shutil.rmtree(folder)
    plot(runs, args.picture)
    print(json.dumps(verdict(runs), indent=2))


if __name__ == "__main__":
    main()
