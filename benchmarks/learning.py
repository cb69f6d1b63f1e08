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

import os
import random
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from controls import rejection_sampling, temperatures
from runs import DEMO, TRAINER, Run, arms_verdict, greedy, run_all, run_options, run_training

from ajet import BaseJudge, WorkflowOutput, WorkflowTask

ARMS: dict[str, list[str]] = {
    "learn": [],
    "avx2": [],
    "shuffled": [f"ajet.task_judge.judge_protocol={Path(__file__).resolve()}->ShuffledJudge"],
    "lr0": [f"{TRAINER}.optim.lr=0.0", f"{TRAINER}.total_training_steps=20"],
    "rejection": [],
}
AXES = {"only": ("arm", list(ARMS))}


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


def run(arm: str, seed: int, folder: Path) -> Run:
    """One training run, and what its summary says; of rejection sampling, what it comes to."""
    name = f"{arm}-{seed}"
    if arm == "rejection":
        return rejection_sampling(DEMO, folder, name, seed)
    environment = avx2_environment(folder) if arm == "avx2" else None
    return run_training([*DEMO, *ARMS[arm]], folder, name, seed, environment)


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


def has_learnt(run: Run) -> bool:
    """The demo's promise, all of it."""
    return (
        greedy(run, "before") <= 0.40
        and greedy(run) >= 0.85
        and run["num_held_out"] >= 200
        and run["wall_seconds"] <= 480
        and run["peak_rss_bytes"] < 2e9
    )


def main() -> None:
    args = run_options(__doc__, "learning", AXES).parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-") as folder:
        start = temperatures(DEMO, Path(folder))
    run_all(args, AXES, run, partial(arms_verdict, start=start, has_learnt=has_learnt))


if __name__ == "__main__":
    main()
