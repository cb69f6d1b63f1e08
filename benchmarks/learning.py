"""Does the demo learn, and only when it should? Five seeds and two controls, as whole runs.

    python benchmarks/learning.py                      # about an hour on two cores
    python benchmarks/learning.py --seeds 1 --only learn --out one.json

Each run is the demo's own command in a process of its own:

    learn       as in `make demo`; held-out success must rise from <= 0.40 to >= 0.85 in <= 480 s
    shuffled    rewards are those of other episodes of the run: the interval of the change holds 0
    lr0         learning rate 0: the same

The unit is the run: a change's 95 % interval is Student's over the seeds, beside it what each run
changed. `wall_seconds` is the run's own, from the start of training; with `--workers 2` two runs
share the cores. `--only` keeps what the file has of the other arms.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ajet import BaseJudge, WorkflowOutput, WorkflowTask

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "tutorial/example_math_agent/demo.yaml"
MATH_JUDGE = "tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge"
ARMS: dict[str, list[str]] = {
    "learn": [],
    "shuffled": [f"ajet.task_judge.judge_protocol={Path(__file__).resolve()}->ShuffledJudge"],
    "lr0": ["ajet.trainer_common.optim.lr=0.0"],
}
KEPT = (
    "success_before",
    "success_after",
    "num_held_out",
    "wall_seconds",
    "peak_rss_bytes",
    "episodes",
    "steps",
)
STUDENT_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306}
"""Two-sided 95 % quantiles of Student's t, by the number of runs."""


class ShuffledJudge(BaseJudge):
    """Gives each episode the reward of an earlier one, drawn at random; success stays true."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        from tutorial.example_math_agent.math_answer_as_judge import MathAnswerAsJudge

        self._judge = MathAnswerAsJudge(config)
        self._random = random.Random("shuffled")
        self._seen: list[float] = []

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reward, is_success = await self._judge.compute_reward(workflow_task, workflow_output)
        self._seen.append(reward)
        return self._random.choice(self._seen[-1024:]), is_success


def run(arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run, and what its summary says."""
    name = f"{arm}-{seed}"
    command = [
        sys.executable,
        "-m",
        "ajet.cli.launcher",
        "--conf",
        str(DEMO),
        "--backbone",
        "debug",
    ]
    command += ["--exp-dir", str(folder), f"ajet.experiment_name={name}", f"ajet.seed={seed}"]
    subprocess.run(command + ARMS[arm], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    summary = json.loads((folder / name / "summary.json").read_text())
    return {"arm": arm, "seed": seed, **{key: summary[key] for key in KEPT}}


def run_training(arguments: list[str], folder: Path, experiment: str, seed: int) -> dict[str, Any]:
    """Runs `ajet` on backbone debug with these arguments, and returns what its summary says and the
    CPU seconds of its process."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--backbone", "debug", *arguments]
    command += ["--exp-dir", str(folder), f"ajet.experiment_name={experiment}", f"ajet.seed={seed}"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{experiment}: exit code {process.returncode}")
    summary = json.loads((folder / experiment / "summary.json").read_text())
    kept = {key: summary[key] for key in KEPT}
    return kept | {"cpu_seconds": usage.ru_utime + usage.ru_stime}


def run_all(
    run: Callable[..., dict[str, Any]],
    wanted: Iterable[tuple[Any, ...]],
    workers: int,
    runs: list[dict[str, Any]],
    write: Callable[[], None],
) -> None:
    """Calls `run` with each of `wanted`, so many at a time; each result is added to `runs`, printed
    and written."""
    with ThreadPoolExecutor(workers) as pool:
        begun = [pool.submit(run, *each) for each in wanted]
        for ended in as_completed(begun):
            runs.append({**ended.result(), "runs_at_a_time": workers})
            print(runs[-1], flush=True)
            write()


def kept_runs(out: Path, again: list[str]) -> list[dict[str, Any]]:
    """The runs of the arms that are not run again."""
    if not out.exists():
        return []
    return [run for run in json.loads(out.read_text())["runs"] if run["arm"] not in again]


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs show, one entry an arm."""
    shown: dict[str, Any] = {}
    for arm in {r["arm"]: None for r in runs}:
        of_arm = [r for r in runs if r["arm"] == arm]
        changes = [r["success_after"] - r["success_before"] for r in of_arm]
        shown[arm] = {"changes": changes, **interval(changes)}
        if arm == "learn":
            shown[arm]["seeds_that_learn"] = sum(map(has_learnt, of_arm))
        elif len(changes) > 1:
            shown[arm]["flat"] = shown[arm]["low"] <= 0 <= shown[arm]["high"]
    return shown


def interval(changes: list[float]) -> dict[str, float]:
    """The mean and the ends of its 95 % interval, which one run does not have."""
    mean = statistics.fmean(changes)
    if len(changes) not in STUDENT_95:
        return {"mean": mean}
    half = STUDENT_95[len(changes)] * statistics.stdev(changes) / len(changes) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half}


def has_learnt(run: dict[str, Any]) -> bool:
    """The demo's promise, all of it."""
    return (
        run["success_before"] <= 0.40
        and run["success_after"] >= 0.85
        and run["num_held_out"] >= 200
        and run["wall_seconds"] <= 480
        and run["peak_rss_bytes"] < 2e9
    )


def write(runs: list[dict[str, Any]], out: Path, note: str | None) -> None:
    runs.sort(key=lambda run: (list(ARMS).index(run["arm"]), run["seed"]))
    write_report(out, verdict(runs), runs, note)


def write_report(
    out: Path, verdict: Any, runs: list[dict[str, Any]], note: str | None = None
) -> None:
    """What the runs come to, and the runs."""
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    report = {"machine": machine, "verdict": verdict, "runs": runs}
    if note is not None:
        report["note"] = note
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/learning.json")
    parser.add_argument("--note", help="what else the machine did, for example")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-learning-"))
    runs = kept_runs(args.out, args.only)
    wanted = [(arm, seed, folder) for arm in args.only for seed in range(args.seeds)]
    run_all(run, wanted, args.workers, runs, lambda: write(runs, args.out, args.note))
    shutil.rmtree(folder)
    print(json.dumps(verdict(runs), indent=2))


if __name__ == "__main__":
    main()
