"""Seconds and tokens until the same held-out success: ajet against TRL's GRPOTrainer.

    # the function-calling tutorial's data and model, and its supervised stage:
    python benchmarks/function_calling.py --arm trained --seed 0 --folder runs
    pip install --no-deps trl && pip install accelerate
    python benchmarks/learning_vs_trl.py --system ajet --seed 0 --folder runs
    python benchmarks/learning_vs_trl.py --system trl --seed 0 --folder runs

The reinforcement stage of the tutorial, from the supervised model of the seed. Both systems get the
same tasks in the same order, prompt ids (compared), group size, sampling, judge, learning rate,
betas, clipping, no KL, the mean over tokens, and one optimizer step a batch. TRL gets its quicker
settings: no gradient checkpointing, no logging, micro-batches of 8, and the faster of float32 and
bfloat16 (`--bf16`). Every `--every` steps the model is stored; `ajet eval` measures the stored
models of both systems greedily on the held-out tasks, outside of the time that counts.

Writes benchmarks/results/learning_vs_trl.json after each run.
"""

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from controls import drawn_at
from report import ROOT, measured_on, options, read, write
from runs import TRAINER, ajet, logged
from two_stages import REINFORCEMENT, last_checkpoint

from ajet import Task, WorkflowOutput, WorkflowTask, assembly
from ajet.core.config import AjetConfig, load_config
from ajet.core.inference.endpoint import Completion
from ajet.core.trajectory.reply_reader import ReplyReader
from ajet.core.trajectory.turn import TurnNotes
from ajet.suites.bfcl import BfclJudge, as_tools, tool_calls
from ajet.tool_parsers import parser_for

SYSTEMS = ("ajet", "trl")
TRL_MICRO_BATCH = 8  # episodes
Point = dict[str, float]
"""Success on the held-out tasks after `step`, with the seconds and sampled tokens until then."""


def settings(args: argparse.Namespace, name: str) -> list[str]:
    """The arguments of `ajet` that both systems train by."""
    trained = args.folder / f"trained_{args.seed}"
    return [
        *("--conf", str(trained / REINFORCEMENT / "config.yaml"), "--backbone", "debug"),
        f"ajet.model.path={last_checkpoint(trained)}",
        f"ajet.seed={args.seed}",
        f"ajet.experiment_name={name}",
        "ajet.experiment_dir=auto",
        "ajet.data.sampler=uniform",  # TRL has no sampler that sees results
        f"{TRAINER}.mini_batch_num=1",
        f"{TRAINER}.total_training_steps={args.steps}",
        f"{TRAINER}.val_before_train=false",
        f"{TRAINER}.test_freq=0",
        f"{TRAINER}.save_freq={args.every}",
        f"{TRAINER}.max_checkpoints_to_keep={1 + args.steps // args.every}",
    ]


def with_ajet(args: argparse.Namespace, run: Path) -> list[Point]:
    """Trains by the command, as a user does; writing checkpoints counts as time of the run."""
    ajet(*settings(args, run.name), "--exp-dir", args.folder, folder=Path.cwd())
    steps = [row for row in logged(run) if "update/seconds" in row]
    began = steps[0]["time"] - steps[0]["rollout/seconds"] - steps[0]["update/seconds"]
    tokens = 0.0
    points = []
    for row in steps:
        tokens += row["tokens/sampled"]
        points.append({"step": row["step"], "seconds": row["time"] - began, "tokens": tokens})
    return points


class Judged:
    """Rewards of replies that TRL sampled: read by ajet's parser and judged by BFCL's checker."""

    def __init__(self, config: AjetConfig, tasks: Sequence[Task]) -> None:
        self.loaded = assembly.load_policy_model(config)
        self.template = assembly.make_template(self.loaded)
        self._reader = ReplyReader(self.template, parser_for(self.template))
        self._judge, self._tasks = BfclJudge(), tasks
        self.num_tokens: list[int] = []  # of each step

    def prompt(self, task: Task) -> str:
        return self.template.render(task.metadata["question"], as_tools(task.metadata["function"]))

    def rewards(
        self, completion_ids: list[list[int]], index: list[int], **_: Any
    ) -> list[float | None]:
        self.num_tokens.append(sum(map(len, completion_ids)))
        return [
            self._reward(self._tasks[number], tuple(ids))
            for ids, number in zip(completion_ids, index, strict=True)
        ]

    def _reward(self, task: Task, ids: tuple[int, ...]) -> float:
        has_ended = bool(ids) and ids[-1] in self.template.stop_token_ids
        reason = "stop" if has_ended else "length"
        completion = Completion((), ids, (0.0,) * len(ids), reason, 0)
        tools = as_tools(task.metadata["function"])
        reply = self._reader.read(0, completion, tools, TurnNotes()).message
        answer = {"function_calls": tool_calls(reply), "prompting": "tools"}
        plan = WorkflowTask(task, "e", "g", 0, 1, "train", 1)
        return self._judge.compute_reward(plan, WorkflowOutput(metadata=answer))[0]


def with_trl(args: argparse.Namespace, run: Path) -> list[Point]:
    """Trains by GRPOTrainer; the time is that of its steps, without writing models."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    given = settings(args, run.name)
    config = load_config(
        Path(given[1]), [*given[4:], "ajet.model.dtype=float32"], backbone="debug", project_dir=ROOT
    )
    tasks = assembly.read_tasks(config)
    size, group = config.ajet.data.train_batch_size, config.ajet.rollout.num_repeat
    order = [index for _ in range(args.steps) for index in tasks.cursor.next_batch(size)]
    judged = Judged(config, tasks.training)
    rows = [{"prompt": judged.prompt(tasks.training[index]), "index": index} for index in order]
    for row in rows[:size]:
        task = tasks.training[row["index"]]
        tools = as_tools(task.metadata["function"])
        if (
            judged.template.prompt_ids(task.metadata["question"], tools)
            != (judged.loaded.tokenizer(row["prompt"])["input_ids"])
        ):
            raise SystemExit(f"{task.task_id}: the systems do not send the same prompt")
    seconds: list[float] = []

    class StepClock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began_s = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.perf_counter() - self.began_s)
            print(f"trl, step {len(seconds)}: {seconds[-1]:.1f} s", file=sys.stderr)

    trainer = config.ajet.trainer_common
    trl_config = GRPOConfig(
        output_dir=str(run),
        use_cpu=True,
        bf16=args.bf16,
        seed=args.seed,
        max_steps=args.steps,
        per_device_train_batch_size=TRL_MICRO_BATCH,
        gradient_accumulation_steps=size * group // TRL_MICRO_BATCH,
        num_generations=group,
        max_completion_length=config.ajet.rollout.max_response_length_in_one_turn,
        temperature=1.0,
        learning_rate=trainer.optim.lr,
        adam_beta1=trainer.optim.betas[0],
        adam_beta2=trainer.optim.betas[1],
        weight_decay=trainer.optim.weight_decay,
        max_grad_norm=trainer.optim.grad_clip,
        lr_scheduler_type="constant",
        loss_type="dapo",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="steps",
        save_steps=args.every,
        save_only_model=True,
        report_to="none",
        disable_tqdm=True,
    )
    with contextlib.redirect_stdout(None):
        GRPOTrainer(
            model=judged.loaded.model,
            reward_funcs=[judged.rewards],
            args=trl_config,
            train_dataset=Dataset.from_list(rows),
            processing_class=judged.loaded.tokenizer,
            callbacks=[StepClock()],
        ).train()
    return [
        {"step": step, "seconds": sum(seconds[:step]), "tokens": sum(judged.num_tokens[:step])}
        for step in range(1, args.steps + 1)
    ]


def success(args: argparse.Namespace, subject: list[str], out: Path) -> float:
    """The greedy success of a stored model on the held-out tasks."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        conf = args.folder / f"trained_{args.seed}" / REINFORCEMENT / "config.yaml"
        given = ["eval", "--conf", conf, *subject, "-k", "1", "--out", out]
        ajet(*given, "ajet.data.val_max_tasks=null", *drawn_at(0.0), folder=Path.cwd())
    tasks = json.loads(out.read_text())["tasks"].values()
    return sum(sum(task["success"]) for task in tasks) / len(tasks)


def curve(args: argparse.Namespace) -> list[Point]:
    """Trains by a system, and measures the start model and those that it stored."""
    name = f"{args.system}_vs_{args.seed}"
    run, measured = args.folder / name, args.folder / "measured" / name
    points = (with_ajet if args.system == "ajet" else with_trl)(args, run)
    start = last_checkpoint(args.folder / f"trained_{args.seed}")
    found = success(args, ["--checkpoint", str(start)], measured / "0.json")
    measured_points = [{"step": 0, "seconds": 0.0, "tokens": 0.0, "success": found}]
    for point in points[args.every - 1 :: args.every]:
        step = int(point["step"])
        subject = ["--checkpoint", str(run / f"checkpoints/step_{step:06d}")]
        if args.system == "trl":
            subject = ["--model", str(run / f"checkpoint-{step}")]
        found = success(args, subject, measured / f"{step}.json")
        measured_points.append({**point, "success": found})
    return measured_points


def until(points: Sequence[Point], level: float) -> Point | None:
    """The first measured point that has reached the level."""
    return next((point for point in points if point["success"] >= level), None)


def verdict(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of each seed that both systems have: seconds and tokens of TRL over ajet's, until the highest
    success that both have reached, and the success of both after the same steps."""
    shown: dict[str, Any] = {}
    for seed in sorted({run["seed"] for run in runs}):
        of_seed = {run["system"]: run["points"] for run in runs if run["seed"] == seed}
        if set(of_seed) != set(SYSTEMS):
            continue
        level = min(max(point["success"] for point in points) for points in of_seed.values())
        ours, peer = (until(of_seed[system], level) for system in SYSTEMS)
        assert ours is not None and peer is not None
        last = {system: points[-1] for system, points in of_seed.items()}
        shown[str(seed)] = {
            "level": level,
            **{f"{key}_ratio": peer[key] / ours[key] for key in ("seconds", "tokens")},
            "seconds_a_step_ratio": last["trl"]["seconds"] / last["ajet"]["seconds"],
            "by_step": {
                system: {int(point["step"]): point["success"] for point in points}
                for system, points in of_seed.items()
            },
        }
    return shown


def main() -> None:
    """Trains and measures one system, and writes what is known."""
    parser = options(__doc__, "learning_vs_trl", seed=0, steps=40, every=10)
    parser.add_argument("--system", choices=SYSTEMS, required=True)
    parser.add_argument("--folder", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--bf16", action="store_true", help="TRL computes in bfloat16")
    args = parser.parse_args()
    args.folder = args.folder.resolve()
    torch.set_num_threads(2)
    found = {"system": args.system, "seed": args.seed, **measured_on(), "points": curve(args)}
    if args.system == "trl":
        import trl

        found |= {"trl": trl.__version__, "bf16": args.bf16}
    key = (args.system, args.seed)
    runs = [r for r in read(args.out).get("runs", []) if (r["system"], r["seed"]) != key] + [found]
    runs.sort(key=lambda run: (run["seed"], run["system"]))
    write(args.out, {"torch": torch.__version__, "verdict": verdict(runs), "runs": runs})
    print(json.dumps(verdict(runs), indent=2))


if __name__ == "__main__":
    main()
