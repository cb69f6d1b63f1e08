"""Explorer and trainer at the same time against taking turns, as whole runs whose tool is slow.

    python benchmarks/long_tails.py                     # five seeds, about two hours of two cores
    python benchmarks/long_tails.py --first 1 --seeds 2 # one more seed; the others stay in the file

The demo's tasks and model on `--backbone trinity`, an engine and a trainer on a core each. The tool
takes a log-normal time in training: exp(N(0, 1)) times half a second, so the slowest of a step's
256 episodes takes about 8 s. An episode's id decides its time.

    in_turns    trinity.max_staleness=0: a step waits for its slowest episode, then trains
    in_flight   trinity.max_staleness=2: weights change while episodes run, which go on with them

Measured are the seconds from one step's record to the next (the median of a run, validations left
out), and held-out success on 256 tasks. Goal: a step takes at least 30 % less time, and the paired
difference in success over five seeds holds 0. async_rollout.py has the limit that the bound allows.

Writes benchmarks/results/long_tails.json after each run.
"""

import json
import os
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from report import ROOT
from runs import (
    DEMO,
    TRAINER,
    Run,
    by,
    greedy,
    interval,
    logged,
    run_all,
    run_options,
    run_training,
)

BOUNDS = {"in_turns": 0, "in_flight": 2}
AXES = {"arms": ("arm", tuple(BOUNDS))}
TEST_FREQ = 20
GOAL = 0.3
AGENT = "ajet.rollout.user_workflow=benchmarks.long_tails_agent->SlowAssistant"


def run(arm: str, seed: int, folder: Path) -> Run:
    """One training run, its held-out success, and the seconds of its steps."""
    name = f"{arm}-{seed}"
    overrides = [f"trinity.max_staleness={BOUNDS[arm]}", f"{TRAINER}.test_freq={TEST_FREQ}", AGENT]
    command = [*DEMO, "--with-ray", *overrides]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    kept = run_training(command, folder, name, seed, environment, backbone="trinity")
    rows = logged(folder / name)
    times = [(row["step"], row["time"]) for row in rows]
    kept["step_seconds"] = [
        after - before
        for (_, before), (step, after) in pairwise(times)
        if (step - 1) % TEST_FREQ  # a validation comes before the others
    ]
    kept["median_step_s"] = median(kept["step_seconds"])
    if arm == "in_flight":
        summary = json.loads((folder / name / "summary.json").read_text())
        kept["staleness"] = summary["staleness"]
    return kept


def verdict(runs: list[Run]) -> dict[str, Any]:
    """Returns what the pairs of runs of a seed show."""
    arms = {arm: {run["seed"]: run for run in found} for arm, found in by("arm", runs).items()}
    turns, flight = (arms.get(arm, {}) for arm in BOUNDS)
    seeds = sorted(turns.keys() & flight.keys())
    if not seeds:
        return {}
    less = [1 - flight[seed]["median_step_s"] / turns[seed]["median_step_s"] for seed in seeds]
    return {
        "seeds": seeds,
        "less_time": interval(less),
        "seeds_that_reach_the_goal": sum(value >= GOAL for value in less),
        "greedy_difference": interval([greedy(flight[s]) - greedy(turns[s]) for s in seeds]),
        "sampled_difference": interval(
            [flight[s]["success_after"] - turns[s]["success_after"] for s in seeds]
        ),
    }


def main() -> None:
    args = run_options(__doc__, "long_tails", AXES).parse_args()
    run_all(args, AXES, run, verdict)


if __name__ == "__main__":
    main()
