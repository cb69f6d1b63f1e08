"""Does the demo learn, and only when it should? Five seeds and four controls, as whole runs.

    python benchmarks/learning.py                      # about an hour on two cores
    python benchmarks/learning.py --seeds 1 --only learn --out one.json

Each run is the demo's own command in its own process:

    learn       as in `make demo`; greedy held-out success must rise from <= 0.40 to >= 0.85, in
                <= 480 s
    avx2        the same without wider instructions than AVX2, as on older processors
    shuffled    rewards are those of other episodes of the run: the interval of the change holds 0
                or less
    lr0         learning rate 0, for 20 steps (nothing moves, however long): it holds 0
    rejection   controls.py; so is `temperatures`, measured once, since every seed starts from the
                same model

The unit is the run: a change's 95 % interval is Student's over the seeds. `adds` is what `learn`
reaches greedily beyond the better control of its seed. `wall_seconds` is the run's own, from the
start of training; with `--workers 2` two runs share the cores. `--only` keeps the file's results of
the other arms.
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
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import datetime
from pathlib import Path
from typing import Any

from controls import rejection_sampling, temperatures

from ajet import BaseJudge, WorkflowOutput, WorkflowTask

ROOT = Path(__file__).parents[1]
CONF = ["--conf", str(ROOT / "tutorial/example_math_agent/demo.yaml")]
MATH_JUDGE = "tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge"
ARMS: dict[str, list[str]] = {
    "learn": [],
    "avx2": [],
    "shuffled": [f"ajet.task_judge.judge_protocol={Path(__file__).resolve()}->ShuffledJudge"],
    "lr0": ["ajet.trainer_common.optim.lr=0.0", "ajet.trainer_common.total_training_steps=20"],
    "rejection": [],
}
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
    """One training run, and what its summary says; of rejection sampling, what it comes to."""
    name = f"{arm}-{seed}"
    if arm == "rejection":
        return {"arm": arm, "seed": seed, **rejection_sampling(CONF, folder, name, seed)}
    environment = avx2_environment(folder) if arm == "avx2" else None
    arguments = [*CONF, *ARMS[arm]]
    return {"arm": arm, "seed": seed, **run_training(arguments, folder, name, seed, environment)}


def avx2_environment(folder: Path) -> dict[str, str]:
    """Returns the environment in which torch's, oneDNN's, MKL's and our compiled kernels use no
    wider instructions than AVX2."""
    wrapper = folder / "bin" / "cc"
    wrapper.parent.mkdir(exist_ok=True)
    replaced = '"${@/-march=native/-march=haswell}"'
    wrapper.write_text(f"#!/bin/bash\nexec {shutil.which('cc')} {replaced}\n")
    wrapper.chmod(0o755)
    return {
        **os.environ,
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "PATH": f"{wrapper.parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(folder / "cache"),  # where our compiled kernels are kept
    }


def run_training(
    arguments: list[str],
    folder: Path,
    experiment: str,
    seed: int,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Runs `ajet` on backbone debug with these arguments, and returns what its summary says and the
    CPU seconds of its process."""
    command = [sys.executable, "-m", "ajet.cli.launcher", "--backbone", "debug", *arguments]
    command += ["--exp-dir", str(folder), f"ajet.experiment_name={experiment}", f"ajet.seed={seed}"]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
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
    """Calls `run` with each of `wanted`, so many at a time; each result is added to `runs` with the
    machine and the commit, printed and written."""
    with ThreadPoolExecutor(workers) as pool:
        begun = [pool.submit(run, *each) for each in wanted]
        for ended in as_completed(begun):
            runs.append({**ended.result(), "runs_at_a_time": workers, **measured_on()})
            print(runs[-1], flush=True)
            write()


def kept_runs(out: Path, again: list[str]) -> list[dict[str, Any]]:
    """The runs of the arms that are not run again."""
    if not out.exists():
        return []
    return [run for run in json.loads(out.read_text())["runs"] if run["arm"] not in again]


def greedy(run: dict[str, Any], moment: str = "after") -> float:
    return run["success_by_decoding"]["greedy"][moment]


def verdict(runs: list[dict[str, Any]], start: dict[str, float]) -> dict[str, Any]:
    """What the runs show, one entry an arm; `start` is the start model's success by temperature."""
    shown: dict[str, Any] = {"temperatures": start}
    arms: dict[str, list[dict[str, Any]]] = {}
    for each in runs:
        arms.setdefault(each["arm"], []).append(each)
    for arm, of_arm in arms.items():
        if arm == "rejection":
            shown[arm] = {"greedy": [greedy(r) for r in of_arm]}
            continue
        changes = [r["success_after"] - r["success_before"] for r in of_arm]
        by_greedy = [greedy(r) - greedy(r, "before") for r in of_arm]
        shown[arm] = {"changes": changes, **interval(changes), "greedy": interval(by_greedy)}
        if arm in ("learn", "avx2"):
            shown[arm]["seeds_that_learn"] = sum(map(has_learnt, of_arm))
        elif len(changes) > 1:
            shown[arm]["flat"] = is_flat(arm, shown[arm])
    if added := beyond_controls(arms.get("learn", []), arms.get("rejection", []), start):
        shown["adds"] = interval(added)
    return shown


def beyond_controls(
    learnt: list[dict[str, Any]], rejection: list[dict[str, Any]], start: dict[str, float]
) -> list[float]:
    """By how much each run's greedy success is above the better of its controls'."""
    of_seed = {run["seed"]: greedy(run) for run in rejection}
    best = max(start.values(), default=1.0)
    return [greedy(r) - max(best, of_seed[r["seed"]]) for r in learnt if r["seed"] in of_seed]


def is_flat(arm: str, change: dict[str, float]) -> bool:
    """Tells whether a control has learnt nothing: shuffled rewards may also do harm."""
    return change["low"] <= 0 and (arm == "shuffled" or change["high"] >= 0)


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
        greedy(run, "before") <= 0.40
        and greedy(run) >= 0.85
        and run["num_held_out"] >= 200
        and run["wall_seconds"] <= 480
        and run["peak_rss_bytes"] < 2e9
    )


def measured_on() -> dict[str, Any]:
    """The machine, its processor's widest vectors, the commit and the day."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    widest = next((n for n in ("avx512_bf16", "avx512f", "avx2") if n in flags), "unknown")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "vectors": os.environ.get("ATEN_CPU_CAPABILITY", widest),
        "commit": commit,
        "date": f"{datetime.now():%Y-%m-%d}",
    }


def write_report(
    out: Path, verdict: Any, runs: list[dict[str, Any]], note: str | None = None
) -> None:
    """What the runs come to, and the runs."""
    report = {**measured_on(), "verdict": verdict, "runs": runs}
    if note is not None:
        report["note"] = note
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed; earlier ones stay")
    parser.add_argument("--only", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/learning.json")
    parser.add_argument("--note", help="what else the machine did, for example")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-learning-"))
    runs, start = kept_runs(args.out, []), temperatures(CONF, folder)

    def write() -> None:
        runs.sort(key=lambda run: (list(ARMS).index(run["arm"]), run["seed"]))
        write_report(args.out, verdict(runs, start), runs, args.note)

    seeds = range(args.first, args.seeds)
    runs = [r for r in runs if r["arm"] not in args.only or r["seed"] < args.first]
    wanted = [(arm, seed, folder) for arm in args.only for seed in seeds]
    run_all(run, wanted, args.workers, runs, write)
    shutil.rmtree(folder)
    print(json.dumps(verdict(runs, start), indent=2))


if __name__ == "__main__":
    main()
