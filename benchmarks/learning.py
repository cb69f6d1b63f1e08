"""Does the demo learn, and only when it should? Five seeds and two controls, as whole runs.

    python benchmarks/learning.py                      # about an hour on two cores
    python benchmarks/learning.py --seeds 1 --only learn

Each run is the demo's own command in a process of its own, on all cores, one after another:

    learn       as in `make demo`; held-out success must rise from <= 0.40 to >= 0.85 in <= 480 s
    shuffled    rewards are those of other episodes of the run: the interval of the change holds 0
    lr0         learning rate 0: the same

The change's interval is that of a paired difference over the held-out tasks' success (normal, 95 %),
and for the controls that of the mean over all their seeds' tasks. Nothing here is timed against
another machine: `wall_seconds` is the run's own, from the start of training.
"""

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ajet import BaseJudge, WorkflowOutput, WorkflowTask
from ajet.core.record.evaluation import mean_over_tasks

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "tutorial/example_math_agent/demo.yaml"
MATH_JUDGE = "tutorial.example_math_agent.math_answer_as_judge->MathAnswerAsJudge"
ARMS: dict[str, list[str]] = {
    "learn": [],
    "shuffled": [f"ajet.task_judge.judge_protocol={Path(__file__).resolve()}->ShuffledJudge"],
    "lr0": ["ajet.trainer_common.optim.lr=0.0"],
}


class ShuffledJudge(BaseJudge):
    """Gives each episode the reward of an earlier one, drawn at random; success stays true."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        from tutorial.example_math_agent.math_answer_as_judge import MathAnswerAsJudge

        self._judge = MathAnswerAsJudge(config)
        self._random = random.Random("shuffled")
        self._seen: list[float] = []

    def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reward, is_success = self._judge.compute_reward(workflow_task, workflow_output)
        self._seen.append(reward)
        return self._random.choice(self._seen[-1024:]), is_success


def run(arm: str, seed: int, folder: Path) -> dict[str, Any]:
    """One training run; its summary, with the paired change over the held-out tasks."""
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
    before, after = summary["held_out"]["before"], summary["held_out"]["after"]
    changes = [after[task] - before[task] for task in sorted(before)]
    keys = (
        "success_before",
        "success_after",
        "wall_seconds",
        "peak_rss_bytes",
        "episodes",
        "steps",
    )
    return {"arm": arm, "seed": seed, **{k: summary[k] for k in keys}, "changes": changes}


def verdict(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs show, one entry an arm."""
    shown: dict[str, Any] = {}
    for arm in {r["arm"]: None for r in runs}:
        of_arm = [r for r in runs if r["arm"] == arm]
        change = mean_over_tasks([c for r in of_arm for c in r["changes"]])
        shown[arm] = {
            "seeds": len(of_arm),
            "change": change.value,
            "interval": [change.low, change.high],
        }
        if arm == "learn":
            good = [
                r["success_before"] <= 0.40 and r["success_after"] >= 0.85 and r["wall_seconds"] <= 480
                and r["peak_rss_bytes"] < 2e9
                for r in of_arm
            ]  # fmt: skip
            shown[arm]["seeds_that_learn"] = sum(good)
        else:
            shown[arm]["flat"] = change.low <= 0 <= change.high
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/learning.json")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="ajet-learning-"))
    runs: list[dict[str, Any]] = []
    for arm in args.only:
        for seed in range(args.seeds):
            runs.append(run(arm, seed, folder))
            print({k: v for k, v in runs[-1].items() if k != "changes"}, flush=True)
            report = {
                "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
                "verdict": verdict(runs),
                "runs": [{k: v for k, v in r.items() if k != "changes"} for r in runs],
            }
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(report, indent=2) + "\n")
    shutil.rmtree(folder)
    print(json.dumps(verdict(runs), indent=2))


if __name__ == "__main__":
    main()
