"""Reward rises on a toy task, and with learning rate 0 not a bit of the weights changes.

The task is to answer in digits: the reward is their share of the reply. Seeded, one thread, so the
curve is the same every time. That the math agent learns is benchmarks/learning.py's to show.
"""

import json
from pathlib import Path
from statistics import fmean

from safetensors.torch import load_file

from ajet.core.model.tokenizer import EMBEDDED_DIR
from tests.e2e.toy_run import ToyRun

DIGITS = """
from ajet import Workflow, WorkflowOutput


class Digits(Workflow):
    async def execute(self, workflow_task, model_tuner):
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        text = str((await model_tuner.chat(messages))["content"])
        share = sum(letter.isdigit() for letter in text) / max(len(text), 1)
        return WorkflowOutput(reward=share, is_success=share > 0.5)
"""


def trained(folder: Path, *overrides: str) -> ToyRun:
    """12 steps of 8 tasks x 8."""
    run = ToyRun(
        folder,
        "ajet.rollout.user_workflow=digits.py->Digits",
        "ajet.data.train_batch_size=8",
        "ajet.rollout.num_repeat=8",
        "ajet.trainer_common.save_freq=0",
        "ajet.trainer_common.use_kl_loss=false",
        *overrides,
    )
    (folder / "digits.py").write_text(DIGITS)
    result = run.call(*run.arguments)
    assert result.exit_code == 0, result.output
    return run


def rewards(run: ToyRun) -> list[float]:
    lines = (run.path / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["reward/mean"] for line in lines]


def test_reward_rises_in_twelve_steps(tmp_path):
    curve = rewards(trained(tmp_path, "ajet.trainer_common.total_training_steps=12"))
    assert len(curve) == 12
    assert fmean(curve[-3:]) > 3 * fmean(curve[:3])


def test_with_learning_rate_zero_the_weights_stay_exactly_as_they_are(tmp_path):
    steps = "ajet.trainer_common.total_training_steps=2"
    run = trained(tmp_path, steps, "ajet.trainer_common.optim.lr=0")
    after = load_file(run.path / "checkpoints" / "step_000002" / "model.safetensors")
    before = load_file(EMBEDDED_DIR / "math" / "model.safetensors")
    assert after.keys() >= before.keys()
    assert all(after[name].equal(before[name]) for name in before)
