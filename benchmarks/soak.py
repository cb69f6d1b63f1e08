"""Ten thousand steps of a tiny run, one episode in a hundred with a fault: does anything grow?

    python -m benchmarks.soak                    # 40 minutes to an hour and a half
    python -m benchmarks.soak --steps 300 --out short.json

The run is the command itself on the debug backbone: two tasks of four episodes a step, a program in
the sandbox in a quarter of them, a checkpoint every 100 steps, a validation every 500. The faults
are those of soak_agent.py. Another process looks at the run from outside, about every half a second
in a short run and every two seconds in a long one:

    memory_mb            resident memory of the run's own process
    children_memory_mb   of all processes below it
    descriptors, threads of the run's own process
    processes            below it
    bounded_disk_mb      of the run folder, without what grows by design: the record
    record_bytes_a_step  what the record has grown by since the last sample, for each step since
    cpu_s_a_step         processor time of the run and its children; it hardly depends on what else
                         the machine does
    wall_s_a_step        for information: it does depend on that

The first tenth of the steps is left out. The rest is cut into 20 blocks of equal numbers of
samples. A block's value is its median, for counts its minimum: a leak raises that, a moment's work
does not. The slope over the blocks' mean steps is that of least squares, with Student's 95 %
interval of 18 degrees of freedom. A series is flat where the interval's lower end, over the whole
run, is at most 2 % of the series' mean or, for counts, at most 1. Writes the JSON, and exits with 1
where a series is not flat or an episode is missing.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.report import ROOT, options, write

AGENT = ROOT / "benchmarks" / "soak_agent.py"
TASKS, MEMBERS = 2, 4
NUM_BLOCKS, STUDENT_95 = 20, 2.101
WARM_UP, MAX_GROWTH = 0.1, 0.02
COUNTS = ("descriptors", "threads", "processes")
NOT_JUDGED = ("wall_s_a_step",)
RECORD = ("episodes.sqlite", "tensorboard", "logs", "stopped.jsonl")
CONFIG: dict[str, Any] = {
    "experiment_name": "soak",
    "model": {"path": "embedded:frozen_lake", "device": "cpu"},
    "task_reader": {
        "type": "jsonl_dataset_file",
        "jsonl_dataset_file": {
            "training": {"file_path": "tasks.jsonl"},
            "validation": {"file_path": "held_out.jsonl"},
        },
    },
    "data": {"train_batch_size": TASKS, "max_prompt_length": 256, "max_response_length": 64},
    "rollout": {
        "user_workflow": f"{AGENT}->Sometimes",
        "num_repeat": MEMBERS,
        "max_response_length_in_one_turn": 8,
        "max_model_len": 512,
        "max_wave_wait_s": 2.0,
        "episode_timeout_s": 4.0,
        "max_failure_rate": 1.0,
    },
    "task_judge": {"judge_protocol": f"{AGENT}->Digits"},
    "trainer_common": {
        "save_freq": 100,
        "test_freq": 500,
        "torch_threads": 1,
        "optim": {"lr": 1e-5},
    },
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds what the run had at one moment, `step` steps done."""

    step: int
    seconds: float
    cpu_s: float
    memory_mb: float
    children_memory_mb: float
    descriptors: int
    threads: int
    processes: int
    bounded_disk_mb: float
    record_bytes: int


def main() -> int:
    arguments = options(__doc__, "soak", steps=10_000).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak_"))
    result = soak(folder, arguments.steps)
    write(arguments.out, result)
    print(json.dumps(result, indent=2))
    if result["is_flat"] and not result["missing_episodes"]:
        shutil.rmtree(folder)
        return 0
    print(f"the run's folder is kept: {folder}", file=sys.stderr)
    return 1


def soak(folder: Path, steps: int, warm_up: float = WARM_UP, **variables: str) -> dict[str, Any]:
    """Runs so many steps in `folder`, with these environment variables, and returns what its series
    show after the share `warm_up` of them."""
    samples = sampled_run(folder, steps, **variables)
    episodes = episodes_of(folder / "launcher_record" / "soak")
    series = series_of([sample for sample in samples if sample.step >= warm_up * steps])
    slopes = {
        name: growth(points, steps, is_count=name in COUNTS) for name, points in series.items()
    }
    return {
        "steps": steps,
        "samples": len(samples),
        "episodes": dict(episodes),
        "missing_episodes": steps * TASKS * MEMBERS - episodes.total(),
        "is_flat": all(
            slope["is_flat"] for name, slope in slopes.items() if name not in NOT_JUDGED
        ),
        "growth": slopes,
    }


def sampled_run(folder: Path, steps: int, **variables: str) -> list[Sample]:
    """Runs the command in `folder` and returns the samples. Raises `CalledProcessError` where it
    fails."""
    for name, numbers in (("tasks", range(40)), ("held_out", range(40, 44))):
        rows = [{"query": f"What is {n} + {n * n}?", "answer": "-"} for n in numbers]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = CONFIG["trainer_common"] | {"total_training_steps": steps}
    (folder / "soak.yaml").write_text(
        yaml.safe_dump({"ajet": CONFIG | {"trainer_common": trainer}})
    )
    command = [sys.executable, "-m", "ajet.cli.launcher", "--conf", "soak.yaml"]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [*command, "--backbone", "debug"],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            start_new_session=True,
        )
    samples = []
    run_folder, seen = folder / "launcher_record" / "soak", psutil.Process(process.pid)
    while process.poll() is None:
        time.sleep(min(2.0, max(0.05, steps / 1000)))
        sample = sample_of(seen, run_folder, after=samples[-1].step if samples else 0)
        if sample is not None:
            samples.append(sample)
    if process.returncode:
        said = (folder / "output").read_text()[-2000:]
        raise subprocess.CalledProcessError(process.returncode, command, said)
    return samples


def sample_of(process: psutil.Process, run_folder: Path, after: int) -> Sample | None:
    """Returns what the run has now, or None where it has done no step after this one, or has
    ended."""
    try:
        step = _steps_done(run_folder / "logs" / "metrics.jsonl")
        if step <= after:
            return None
        record, bounded = _disk(run_folder)
        children = [_use(child) for child in process.children(recursive=True)]
        times = process.cpu_times()
        return Sample(
            step=step,
            seconds=time.monotonic(),
            cpu_s=times.user + times.system + times.children_user + times.children_system,
            memory_mb=process.memory_info().rss / 1e6,
            children_memory_mb=sum(children) / 1e6,
            descriptors=process.num_fds(),
            threads=process.num_threads(),
            processes=len(children),
            bounded_disk_mb=bounded / 1e6,
            record_bytes=record,
        )
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return None


def series_of(samples: Sequence[Sample]) -> dict[str, list[tuple[float, float]]]:
    """Returns pairs of step and value by the names of the module's docstring."""
    levels = (*COUNTS, "memory_mb", "children_memory_mb", "bounded_disk_mb")
    series = {name: [(float(s.step), getattr(s, name)) for s in samples] for name in levels}
    pairs = list(itertools.pairwise(samples))
    for name, of in (
        ("record_bytes_a_step", "record_bytes"),
        ("cpu_s_a_step", "cpu_s"),
        ("wall_s_a_step", "seconds"),
    ):
        series[name] = [
            (float(b.step), (getattr(b, of) - getattr(a, of)) / (b.step - a.step)) for a, b in pairs
        ]
    return series


def growth(points: Sequence[tuple[float, float]], steps: int, is_count: bool) -> dict[str, Any]:
    """Returns how much a series grows over `steps` steps, with its 95 % interval, and whether that
    is flat (see the module's docstring)."""
    size = len(points) // NUM_BLOCKS
    if size < 1:
        raise ValueError(f"{len(points)} samples are too few for {NUM_BLOCKS} blocks")
    blocks = [points[i * size : (i + 1) * size] for i in range(NUM_BLOCKS)]
    value_of = min if is_count else statistics.median
    x = [statistics.fmean(step for step, _ in block) for block in blocks]
    y = [float(value_of(value for _, value in block)) for block in blocks]
    slope, half = slope_with_interval(x, y)
    mean = statistics.fmean(y)
    bound = 1.0 if is_count else MAX_GROWTH * mean
    return {
        "mean": mean,
        "growth": slope * steps,
        "low": (slope - half) * steps,
        "high": (slope + half) * steps,
        "bound": bound,
        "is_flat": (slope - half) * steps <= bound,
        "blocks": y,
    }


def slope_with_interval(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Returns the slope of least squares and half of its 95 % interval, for `NUM_BLOCKS` points."""
    slope, start = statistics.linear_regression(x, y)
    mean = statistics.fmean(x)
    squares = sum((b - start - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    variance = squares / (len(x) - 2) / sum((a - mean) ** 2 for a in x)
    return slope, STUDENT_95 * math.sqrt(variance)


def episodes_of(run_folder: Path) -> Counter[str]:
    """Returns the number of training episodes by status."""
    with sqlite3.connect(run_folder / "episodes.sqlite") as connection:
        query = "SELECT status, count(*) FROM episodes WHERE mode = 'train' GROUP BY status"
        return Counter(dict(connection.execute(query)))


def _steps_done(metrics: Path) -> int:
    """Returns the step of the file's last whole line, 0 where there is none."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, metrics.stat().st_size - 16_384))
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    whole = [line for line in lines if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def _use(process: psutil.Process) -> int:
    """Returns the resident memory of a process in bytes, 0 where it has ended."""
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


def _disk(run_folder: Path) -> tuple[int, int]:
    """Returns the bytes of the record, and those of all other files of the run folder."""
    record = bounded = 0
    for path in run_folder.rglob("*"):
        try:
            size = path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
        if path.relative_to(run_folder).parts[0].startswith(RECORD):
            record += size
        else:
            bounded += size
    return record, bounded


if __name__ == "__main__":
    sys.exit(main())
