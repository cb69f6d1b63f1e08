"""How long the math demo takes on each backbone, on one machine.

    python benchmarks/backbone_times.py [--steps 8] [--rounds 3] [--out FILE.json]

Each round runs the first steps of `tutorial/example_math_agent/demo.yaml` on debug, verl and
trinity, one after another, each as a command of its own with a Ray of its own. What is compared is
`wall_seconds` of the run's summary, from the start of training to its end, and `all_seconds`, from
the command to the exit. The median ratio of the rounds is what counts; goal: at most 1.3 times one
process's time.

The ratio depends on the machine: the work between processes is the same, so it weighs more where
matrix products are faster. With the same code verl took 1.13 times one process's time where that
was 53 s, and 1.31 times where it was 32 s.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from report import options, write
from runs import DEMO, TRAINER, run_training

BACKBONES = ("debug", "verl", "trinity")
GOAL = 1.3


def run(backbone: str, steps: int, number: int, folder: Path) -> dict[str, Any]:
    """One training run and its seconds."""
    arguments = [*DEMO, f"{TRAINER}.total_training_steps={steps}", f"{TRAINER}.test_freq=0"]
    arguments += [f"{TRAINER}.val_before_train=false", f"{TRAINER}.save_freq=0"]
    arguments += ["--with-ray"] if backbone != "debug" else []
    begun_s = time.monotonic()
    found = run_training(arguments, folder, f"{backbone}-{number}", seed=0, backbone=backbone)
    all_seconds = time.monotonic() - begun_s
    assert found["steps"] == steps
    seconds = {"wall_seconds": found["wall_seconds"], "all_seconds": all_seconds}
    return {"backbone": backbone, "round": number, **seconds}


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median ratios to one process's time."""
    shown: dict[str, Any] = {}
    times = {(each["backbone"], each["round"]): each for each in runs}
    rounds = sorted({each["round"] for each in runs})
    for backbone in BACKBONES[1:]:
        pairs = [(times[backbone, number], times["debug", number]) for number in rounds]
        ratios = {
            key: median(own[key] / one[key] for own, one in pairs)
            for key in ("wall_seconds", "all_seconds")
        }
        passed = ratios["wall_seconds"] <= GOAL
        shown[backbone] = {**ratios, "goal": GOAL, "passed": passed}
    return shown


def main() -> None:
    args = options(__doc__, "backbone_times", steps=8, rounds=3).parse_args()
    runs = []
    with tempfile.TemporaryDirectory(prefix="ajet-times-") as folder:
        for number in range(args.rounds):
            for backbone in BACKBONES:
                runs.append(run(backbone, args.steps, number, Path(folder)))
                print(runs[-1], flush=True)
    shown = verdict(runs)
    write(args.out, {"steps": args.steps, "verdict": shown, "runs": runs})
    print(shown)


if __name__ == "__main__":
    main()
