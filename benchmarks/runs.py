"""Whole training runs: each is a command of ajet in a process of its own, for each arm and seed."""

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

from report import ROOT, measured_on, options, read, write

TRAINER = "ajet.trainer_common"
DEMO = ["--conf", str(ROOT / "tutorial/example_math_agent/demo.yaml")]
KEPT = (
    "success_before",
    "success_after",
    "success_by_decoding",
    "num_held_out",
    "wall_seconds",
    "peak_rss_bytes",
    "episodes",
    "steps",
)
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
STUDENT_95 = dict(enumerate(_QUANTILES, 2))
"""Two-sided 95 % quantiles of Student's t, by the number of runs."""
Run = dict[str, Any]
Axes = Mapping[str, tuple[str, Sequence[str]]]
"""Options of the command line; of each the field of a run that it sets, and what it may be."""


def ajet(*arguments: str | Path, folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """Runs a command of ajet in this folder and returns its `os.wait4` resource usage."""
    command = [sys.executable, "-m", "ajet.cli.launcher", *map(str, arguments)]
    process = Popen(command, cwd=folder, env=environment, stdout=DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return usage


def run_training(
    arguments: Sequence[str],
    folder: Path,
    experiment: str,
    seed: int,
    environment: Mapping[str, str] | None = None,
    backbone: str = "debug",
) -> Run:
    """Trains with these arguments, and returns what the summary says and the CPU seconds of the
    process."""
    command = ["--backbone", backbone, *arguments, "--exp-dir", str(folder)]
    command += [f"ajet.experiment_name={experiment}", f"ajet.seed={seed}"]
    usage = ajet(*command, folder=folder, environment=environment)
    summary = json.loads((folder / experiment / "summary.json").read_text())
    kept = {key: summary[key] for key in KEPT}
    return kept | {"cpu_seconds": usage.ru_utime + usage.ru_stime}


def logged(run: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics."""
    return [json.loads(line) for line in (run / "logs/metrics.jsonl").read_text().splitlines()]


def run_options(
    doc: str | None, result: str, axes: Axes, seeds: int = 5
) -> argparse.ArgumentParser:
    """Returns a parser for `run_all`."""
    parser = options(doc, result, seeds=seeds)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--note", help="what else the machine did, for example")
    for option, (_, choices) in axes.items():
        parser.add_argument(f"--{option}", nargs="*", choices=list(choices), default=list(choices))
    return parser


def run_all(
    args: argparse.Namespace,
    axes: Axes,
    run: Callable[..., Run],
    verdict: Callable[[list[Run]], Any],
) -> list[Run]:
    """Calls `run` with each choice on each axis, a seed and a folder. Each result is printed and
    written with the verdict on all runs; those that are not made again stay in the file."""
    fields = [*(field for field, _ in axes.values()), "seed"]
    order = [*(list(choices) for _, choices in axes.values()), range(1_000_000)]
    seeds = range(args.first, args.seeds)
    chosen = [getattr(args, option) for option in axes]
    wanted = [(*each, seed) for seed in seeds for each in itertools.product(*chosen)]

    def place(made: Run) -> tuple[Any, ...]:
        return tuple(made.get(field, 0) for field in fields)

    def rank(made: Run) -> list[int]:
        return [each.index(value) for each, value in zip(order, place(made), strict=True)]

    def write_all() -> None:
        note = {"note": args.note} if args.note else {}
        write(args.out, {"verdict": verdict(runs), "runs": runs, **note})

    runs = [made for made in read(args.out).get("runs", []) if place(made) not in wanted]
    with (
        tempfile.TemporaryDirectory(prefix="ajet-") as folder,
        ThreadPoolExecutor(args.workers) as pool,
    ):
        begun = {pool.submit(run, *each, Path(folder)): each for each in wanted}
        for ended in as_completed(begun):
            told = dict(zip(fields, begun[ended], strict=True)) | ended.result()
            runs.append({**told, "runs_at_a_time": args.workers, **measured_on()})
            print(runs[-1], flush=True)
            runs.sort(key=rank)
            write_all()
    print(json.dumps(verdict(runs), indent=2))
    return runs


def by(field: str, runs: list[Run]) -> dict[str, list[Run]]:
    """The runs by their value of a field."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run[field], []).append(run)
    return found


def greedy(run: Run, moment: str = "after") -> float:
    return run["success_by_decoding"]["greedy"][moment]


def changes(runs: list[Run]) -> list[float]:
    """What each run has added to its sampled held-out success."""
    return [run["success_after"] - run["success_before"] for run in runs]


def greedy_changes(runs: list[Run]) -> list[float]:
    return [greedy(run) - greedy(run, "before") for run in runs]


def interval(values: list[float]) -> dict[str, float]:
    """The mean and the ends of its 95 % interval, which one run does not have."""
    mean = statistics.fmean(values)
    if len(values) not in STUDENT_95:
        return {"mean": mean}
    half = STUDENT_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half}


def is_flat(arm: str, change: Mapping[str, Any]) -> bool:
    """Tells whether a control has learnt nothing: shuffled rewards may also do harm."""
    return change["low"] <= 0 and (arm == "shuffled" or change["high"] >= 0)


def beyond_controls(
    learnt: list[Run], rejection: list[Run], start: dict[str, float]
) -> list[float]:
    """By how much each run's greedy success is above the better of its controls'."""
    of_seed = {run["seed"]: greedy(run) for run in rejection}
    best = max(start.values(), default=1.0)
    return [greedy(r) - max(best, of_seed[r["seed"]]) for r in learnt if r["seed"] in of_seed]


def arms_verdict(
    runs: list[Run], start: dict[str, float], has_learnt: Callable[[Run], bool]
) -> dict[str, Any]:
    """What the runs of one game show, one entry an arm; `start` is the start model's success by
    temperature."""
    shown: dict[str, Any] = {"temperatures": start}
    arms = by("arm", runs)
    for arm, found in arms.items():
        if arm == "rejection":
            shown[arm] = {"greedy": [greedy(run) for run in found]}
            continue
        entry: dict[str, Any] = {"changes": changes(found), **interval(changes(found))}
        if all("success_by_decoding" in run for run in found):
            entry["greedy"] = interval(greedy_changes(found))
        if arm not in ("shuffled", "lr0"):
            entry["seeds_that_learn"] = sum(map(has_learnt, found))
            entry["passed"] = entry["seeds_that_learn"] == len(found)
        elif len(found) > 1:
            entry["passed"] = is_flat(arm, entry)
        shown[arm] = entry
    if added := beyond_controls(arms.get("learn", []), arms.get("rejection", []), start):
        shown["adds"] = interval(added)
    return shown
