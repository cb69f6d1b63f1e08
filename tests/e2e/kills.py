"""SIGKILL in a chosen part of a step, at a seeded moment, seen from outside the run.

rollout      a step's episodes are in their middle, held there until the kill
update       all of them have; no checkpoint is being written yet
checkpoint   the checkpoint's folder is being written
random       any time after the step's first episode
"""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence

from tests.e2e.toy_run import EPISODES, STEPS, ToyRun, ended, wait_until

MAX_DELAY_S = {"rollout": 0.1, "update": 0.1, "checkpoint": 0.02, "random": 0.6}


def kill_and_resume(run: ToyRun, kills: Sequence[str], rng: random.Random) -> list[str]:
    """One attempt a kill, each at least a step further, then one to the end; where each was hit."""
    phases = []
    for number, kill in enumerate(kills):
        step = 1 + max(run.steps_saved(), default=0)
        if step >= STEPS:
            break
        phases.append(sit_until_killed(run, kill, step + (number + 1 < len(kills)), rng))
    run.forget_told()
    assert run.finish() == 0, run.stderr()
    return phases


def sit_until_killed(run: ToyRun, kill: str, step: int, rng: random.Random) -> str:
    """Run until the chosen part of `step` (the last step at most), and kill."""
    step = min(step, STEPS)
    run.forget_told()
    run.hold(step if kill == "rollout" else None)
    with ended(run.start()) as process:
        assert wait_until(moments(run, step)[kill], process), run.stderr()
        time.sleep(rng.random() * MAX_DELAY_S[kill])
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    run.hold(None)
    return phase_of(run)


def moments(run: ToyRun, step: int) -> dict[str, Callable[[], bool]]:
    """Returns, by the names above, whether that part of the step has come, as seen from outside."""
    return {
        "rollout": lambda: run.episodes("begin", step) >= EPISODES,
        "update": lambda: run.episodes("end", step) >= EPISODES,
        "checkpoint": lambda: any((run.path / "checkpoints").glob(f".writing_*{step}")),
        "random": lambda: run.episodes("begin", step) > 0,
    }


def phase_of(run: ToyRun) -> str:
    """Where the run was when it was killed."""
    if any((run.path / "checkpoints").glob(".writing_*")):
        return "checkpoint"
    step = max(int(line.split()[1]) for line in run.told())
    return "rollout" if run.episodes("end", step) < EPISODES else "update"
