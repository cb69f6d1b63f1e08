"""How long the math demo takes on each backbone, on one machine, and where the CPU time goes.

    python benchmarks/backbone_times.py [--steps 8] [--rounds 3] [--out FILE.json]

Each round runs the first steps of `tutorial/example_math_agent/demo.yaml` on debug, verl and
trinity, one after another, each as a command of its own with a Ray of its own. What is compared is
`wall_seconds` of the run's summary, from the start of training to its end, and `all_seconds`, from
the command to the exit. The median ratio of the rounds is what counts; goal: at most 1.3 times one
process's time. `cpu_seconds` has the CPU time of each kind of process, read twice a second from the
processes that carry the run's mark in their environment.

The ratio depends on the machine: the work between processes is the same, so it weighs more where
matrix products are faster. With the same code verl took 1.13 times one process's time where that
was 53 s, and 1.31 times where it was 32 s.

The limit beside the ratio is computed: the work of one process cannot be done faster than by all
cores together, so it is the run's CPU seconds divided by the cores, over one process's seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from report import options, write
from runs import DEMO, TRAINER

BACKBONES = ("debug", "verl", "trinity")
GOAL = 1.3
MARK = "AJET_BACKBONE_TIMES"


def kind_of(process: psutil.Process) -> str:
    """Returns what a process of a run is, by its command line."""
    line = " ".join(process.cmdline())
    if line.startswith("ray::"):
        return line.removeprefix("ray::").partition(".")[0].partition(" ")[0]
    if "ajet.cli.launcher" in line:
        return "command"
    return "ray" if "/ray/" in line else "other"


def cpu_seconds(command: list[str], folder: Path) -> dict[str, float]:
    """Runs a command; returns the CPU seconds of its processes, by their kind."""
    mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
    env = os.environ | dict([mark.split("=")])
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    others: set[tuple[int, float]] = set()
    used: dict[tuple[int, float], tuple[str, float]] = {}
    while running.poll() is None:
        for process in psutil.process_iter():
            try:
                key = (process.pid, process.create_time())
                if key in others:
                    continue
                if key not in used and mark.partition("=")[0] not in process.environ():
                    others.add(key)
                    continue
                times = process.cpu_times()
                used[key] = (kind_of(process), times.user + times.system)
            except psutil.Error:
                continue
        time.sleep(0.5)
    if running.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {(folder / 'log').read_text()[-2000:]}")
    total: defaultdict[str, float] = defaultdict(float)
    for kind, seconds in used.values():
        total[kind] += seconds
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def run(backbone: str, steps: int, number: int, folder: Path) -> dict[str, Any]:
    """One training run: its seconds, and those of its processes."""
    name = f"{backbone}-{number}"
    command = [sys.executable, "-m", "ajet.cli.launcher", *DEMO]
    command += ["--backbone", backbone, "--exp-dir", str(folder)]
    command += ["--with-ray"] if backbone != "debug" else []
    command += [f"ajet.experiment_name={name}"]
    command += [f"{TRAINER}.total_training_steps={steps}", f"{TRAINER}.val_before_train=false"]
    command += [f"{TRAINER}.test_freq=0", f"{TRAINER}.save_freq=0"]
    begun_s = time.monotonic()
    used = cpu_seconds(command, folder)
    all_seconds = time.monotonic() - begun_s
    summary = json.loads((folder / name / "summary.json").read_text())
    assert summary["steps"] == steps
    return {
        "backbone": backbone,
        "round": number,
        "wall_seconds": summary["wall_seconds"],
        "all_seconds": all_seconds,
        "cpu_seconds": {kind: round(seconds, 1) for kind, seconds in used.items()},
    }


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median ratios to one process's time, and their limits."""
    shown: dict[str, Any] = {}
    times = {(each["backbone"], each["round"]): each for each in runs}
    rounds = sorted({each["round"] for each in runs})
    for backbone in BACKBONES[1:]:
        pairs = [(times[backbone, number], times["debug", number]) for number in rounds]
        ratios = {
            key: median(own[key] / one[key] for own, one in pairs)
            for key in ("wall_seconds", "all_seconds")
        }
        limit = median(
            sum(own["cpu_seconds"].values()) / (os.cpu_count() or 1) / one["all_seconds"]
            for own, one in pairs
        )
        shown[backbone] = {
            **ratios,
            "limit_of_all_seconds": limit,
            "goal": GOAL,
            "passed": ratios["wall_seconds"] <= GOAL,
        }
    return shown


def main() -> None:
    args = options(__doc__, "backbone_times", steps=8, rounds=3).parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="ajet-times-") as folder:
        for number in range(args.rounds):
            for backbone in BACKBONES:
                runs.append(run(backbone, args.steps, number, Path(folder)))
                print(json.dumps(runs[-1]), flush=True)
    shown = verdict(runs)
    told = {"steps": args.steps, "cpu_count": os.cpu_count(), "verdict": shown, "runs": runs}
    write(args.out, told)
    print(json.dumps(shown, indent=2))


if __name__ == "__main__":
    main()
