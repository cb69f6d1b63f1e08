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

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from learning import CONF, ROOT, greedy, interval, write_report

BACKBONES = ("verl", "trinity")
KEPT = ("success_before", "success_after", "success_by_decoding", "num_held_out", "wall_seconds")
KEPT += ("episodes", "steps")
LEAST_AFTER = 0.85
MOST_BEFORE = 0.40


def run(backbone: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run, and what its summary says."""
    name = f"{backbone}-{seed}"
    command = [sys.executable, "-m", "ajet.cli.launcher", *CONF, "--with-ray"]
    command += ["--backbone", backbone, "--exp-dir", str(folder)]
    command += [f"ajet.experiment_name={name}", f"ajet.seed={seed}"]
    begun = time.monotonic()
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL)
    all_seconds = time.monotonic() - begun
    summary = json.loads((folder / name / "summary.json").read_text())
    kept = {key: summary[key] for key in KEPT}
    rows = map(json.loads, (folder / name / "logs/metrics.jsonl").open())
    curve = {row["step"]: row["held_out/success"] for row in rows if "held_out/success" in row}
    kept["held_out"] = curve
    if backbone == "trinity":
        kept["staleness"] = summary["staleness"]
    return {"backbone": backbone, "seed": seed, **kept, "all_seconds": all_seconds}


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs show, one entry a backbone."""
    shown: dict[str, Any] = {}
    for backbone in dict.fromkeys(run["backbone"] for run in runs):
        found = [run for run in runs if run["backbone"] == backbone]
        changes = [run["success_after"] - run["success_before"] for run in found]
        shown[backbone] = {
            "changes": changes,
            **interval(changes),
            "greedy": interval([greedy(run) - greedy(run, "before") for run in found]),
            "seeds_that_learn": sum(map(has_learnt, found)),
            "passed": all(map(has_learnt, found)),
        }
    return shown


def has_learnt(run: dict[str, Any]) -> bool:
    return (
        greedy(run, "before") <= MOST_BEFORE
        and greedy(run) >= LEAST_AFTER
        and run["num_held_out"] >= 200
    )


def write(runs: list[dict[str, Any]], out: Path) -> None:
    runs.sort(key=lambda run: (BACKBONES.index(run["backbone"]), run["seed"]))
    write_report(out, verdict(runs), runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backbones", nargs="*", choices=BACKBONES, default=list(BACKBONES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0, help="those before it are kept")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/learning_on_ray.json"
    )
    args = parser.parse_args()
    seeds = range(args.first_seed, args.seeds)
    wanted = [(backbone, seed) for seed in seeds for backbone in args.backbones]
    runs = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    runs = [run for run in runs if (run["backbone"], run["seed"]) not in wanted]
    folder = Path(tempfile.mkdtemp(prefix="ajet-on-ray-"))
    for each in wanted:
        runs.append(run(*each, folder))
        print(runs[-1], flush=True)
        write(runs, args.out)
    shutil.rmtree(folder)
    print(json.dumps(verdict(runs), indent=2))


if __name__ == "__main__":
    main()
