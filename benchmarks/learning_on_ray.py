"""Does the math demo reach its bar on the Ray backbones too? Three seeds each, as whole runs.

    python benchmarks/learning_on_ray.py                      # half an hour or more of two cores
    python benchmarks/learning_on_ray.py --backbones verl --seeds 1 --out one.json

Each run is `ajet --conf demo.yaml --backbone verl|trinity --with-ray` with the demo's own settings,
in a Ray of its own on this machine. The bar is that of learning.py: greedy held-out success from <=
0.40 to >= 0.85. `held_out` is the sampled success by step. `wall_seconds` is the run's own, from
the start of training; `all_seconds` begins with the command and ends when its Ray is gone.
`staleness` has trinity's trained tokens by their age in updates. What the file has of other
backbones and seeds is kept.
"""

import json
import time
from pathlib import Path
from typing import Any

from runs import (
    DEMO,
    Run,
    by,
    changes,
    greedy,
    greedy_changes,
    interval,
    logged,
    run_all,
    run_options,
    run_training,
)

BACKBONES = ("verl", "trinity")
AXES = {"backbones": ("backbone", BACKBONES)}
LEAST_AFTER = 0.85
MOST_BEFORE = 0.40


def run(backbone: str, seed: int, folder: Path) -> Run:
    """One training run, and what its summary says."""
    name, begun = f"{backbone}-{seed}", time.monotonic()
    kept = run_training([*DEMO, "--with-ray"], folder, name, seed, backbone=backbone)
    kept["all_seconds"] = time.monotonic() - begun
    rows = logged(folder / name)
    kept["held_out"] = {r["step"]: r["held_out/success"] for r in rows if "held_out/success" in r}
    if backbone == "trinity":
        kept["staleness"] = json.loads((folder / name / "summary.json").read_text())["staleness"]
    return kept


def verdict(runs: list[Run]) -> dict[str, Any]:
    """What the runs show, one entry a backbone."""
    return {
        backbone: {
            "changes": changes(found),
            **interval(changes(found)),
            "greedy": interval(greedy_changes(found)),
            "seeds_that_learn": sum(map(has_learnt, found)),
            "passed": all(map(has_learnt, found)),
        }
        for backbone, found in by("backbone", runs).items()
    }


def has_learnt(run: Run) -> bool:
    return (
        greedy(run, "before") <= MOST_BEFORE
        and greedy(run) >= LEAST_AFTER
        and run["num_held_out"] >= 200
    )


def main() -> None:
    args = run_options(__doc__, "learning_on_ray", AXES, seeds=3).parse_args()
    run_all(args, AXES, run, verdict)


if __name__ == "__main__":
    main()
