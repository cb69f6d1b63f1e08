"""Episodes over Ray workers against one process with as many slots, with log-normal tool times.

    python benchmarks/ray_admission.py [--mean-s 1.0] [--out FILE.json]

Each episode sleeps for `mean_s` x exp(N(0, 1) - 1/2) seconds, as a tool would, and then calls a
model that answers at once. One step is measured for groups of 4, 8 and 16 members: by `GroupRunner`
in this process, and over two rollout workers of a real Ray with half of the slots each. What is
compared is the time of the whole step; goal: the workers reach at least 95 % of one process.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from report import options, write

from ajet import ModelTuner, Task, Workflow, WorkflowOutput, WorkflowTask
from ajet.core.config import AjetConfig, load_config
from ajet.core.rollout.group import GroupRunner
from ajet.core.rollout.request import RolloutRequest
from ajet.core.seeding import derive
from ajet.engines.scripted import RandomEngine

EPISODES, SLOTS, WORKERS, GROUPS_OF = 128, 16, 2, (4, 8, 16)
GOAL = 0.95
MESSAGES = [{"role": "user", "content": "2+2?"}]
CONFIG = """
ajet:
  model: {path: embedded:math, device: cpu}
  rollout: {user_workflow: WORKFLOW->Waits, max_env_worker: SLOTS}
  task_judge: {judge_protocol: null}
bench: {mean_s: MEAN}
"""


def seconds_of(workflow_task: WorkflowTask, mean_s: float) -> float:
    """How long the tool of this episode takes, wherever it runs."""
    draw = np.random.default_rng(derive("ray admission", workflow_task.episode_id))
    return mean_s * float(np.exp(draw.normal() - 0.5))


class Waits(Workflow):
    """A tool that takes its time, and a call of the model."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        await asyncio.sleep(seconds_of(workflow_task, model_tuner.config.bench["mean_s"]))
        await model_tuner.chat(MESSAGES)
        return WorkflowOutput(reward=1.0)


def request(group_size: int) -> RolloutRequest:
    """All episodes of one step."""
    tasks = [Task(f"t{n}", "2+2?") for n in range(EPISODES // group_size)]
    return RolloutRequest(tasks, step=1, mode="train", num_repeat=group_size)


async def timed(runner: GroupRunner, group_size: int) -> float:
    """The seconds of one step."""
    started_s = time.perf_counter()
    groups = await runner.rollout(request(group_size))
    seconds = time.perf_counter() - started_s
    assert all(len(group.valid) == group_size for group in groups)
    return seconds


def config_in(folder: Path, mean_s: float) -> AjetConfig:
    """A config whose workflow is this file's."""
    text = CONFIG.replace("WORKFLOW", str(Path(__file__).resolve()))
    text = text.replace("SLOTS", str(SLOTS)).replace("MEAN", str(mean_s))
    (folder / "bench.yaml").write_text(text)
    return load_config(folder / "bench.yaml", [], backbone="debug")


async def in_one_process(config: AjetConfig, spec: Any) -> dict[int, float]:
    """Seconds by group size, with all slots in this process."""
    from ajet import assembly
    from ajet.core.inference.chat_template import ChatTemplate

    engine, template = RandomEngine(len(spec.tokenizer)), ChatTemplate(spec.tokenizer)
    runner = assembly.make_runner(config, engine, template, judge=None)
    return {size: await timed(runner, size) for size in GROUPS_OF}


async def over_workers(config: AjetConfig, spec: Any) -> dict[int, float]:
    """Seconds by group size, with the slots divided among workers of a Ray."""
    from ajet.cluster.rollout_workers import RolloutWorkers

    workers = RolloutWorkers(config, [{}] * WORKERS)
    try:
        runner = await workers.start(partial(RandomEngine, len(spec.tokenizer)), spec)
        return {size: await timed(runner, size) for size in GROUPS_OF}
    finally:
        workers.close()


def measure(mean_s: float) -> list[dict[str, Any]]:
    """One row for each group size."""
    import ray
    from transformers import AutoTokenizer

    from ajet.cluster.rollout_worker import TokenizerSpec
    from ajet.cluster.session import start_ray
    from ajet.core.model.load import EMBEDDED_DIR

    spec = TokenizerSpec(
        AutoTokenizer.from_pretrained(EMBEDDED_DIR / "math"), (), datetime(2026, 1, 1)
    )
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        config = config_in(Path(folder), mean_s)
        start_ray(Path(folder), num_cpus=4, num_gpus=0, log_to_driver=False)
        try:
            workers = asyncio.run(over_workers(config, spec))
        finally:
            ray.shutdown()
        alone = asyncio.run(in_one_process(config, spec))
    rows = []
    for size in GROUPS_OF:
        rows.append(
            {
                "group_size": size,
                "one_process_s": round(alone[size], 2),
                "ray_workers_s": round(workers[size], 2),
                "share_of_one_process": round(alone[size] / workers[size], 3),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print and write."""
    chosen = options(__doc__, "ray_admission", mean_s=1.0).parse_args()
    rows = measure(chosen.mean_s)
    sizes = {"episodes": EPISODES, "slots": SLOTS, "workers": WORKERS, "mean_s": chosen.mean_s}
    least = min(row["share_of_one_process"] for row in rows)
    verdict = {"least_share": least, "goal": GOAL}
    write(chosen.out, {"workload": sizes, "rows": rows, "verdict": verdict})
    print(verdict)


if __name__ == "__main__":
    main()
