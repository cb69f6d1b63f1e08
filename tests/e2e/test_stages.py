"""A run with stages: killed at any moment and started again, it ends with the same weights."""

import hashlib
import json
import math
import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.toy_run import ToyRun, ended, wait_until

STAGES = """
  stages:
    imitate:
      kind: supervised
      task_reader:
        jsonl_dataset_file:
          training: {file_path: rows.jsonl}
          validation: {file_path: rows.jsonl}
      trainer_common: {total_training_steps: 3, test_freq: 3}
    prefer:
      kind: preference
      task_reader:
        jsonl_dataset_file:
          training: {file_path: pairs.jsonl}
          validation: {file_path: pairs.jsonl}
      trainer_common: {total_training_steps: 2, test_freq: 2}
    learn:
      trainer_common: {total_training_steps: 2}
"""
NAMES = ("imitate", "prefer", "learn")


class StagedRun(ToyRun):
    def __init__(self, folder: Path, *overrides: str) -> None:
        super().__init__(folder, *overrides)
        with (folder / "toy.yaml").open("a") as file:
            file.write(STAGES)
        rows = [{"prompt": f"What is {n}?", "completion": str(n * n)} for n in range(9)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        pairs = [
            {"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no"} for row in rows
        ]
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))

    def saved(self, stage: str) -> list[Path]:
        return sorted((self.path / stage / "checkpoints").glob("step_*"))

    def has_saved(self, stage: str, step: int) -> bool:
        return any(int(path.name[5:]) >= step for path in self.saved(stage))

    def digests(self) -> dict[str, str]:
        """Of each stage's last weights, optimizer state, and recorded tokens."""
        files = [
            file for name in NAMES for file in sorted(self.saved(name)[-1].glob("*.safetensors"))
        ]
        return {
            str(file.relative_to(self.path)): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in files
        }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = StagedRun(tmp_path_factory.mktemp("whole"))
    assert run.finish() == 0, run.stderr()
    return run


def test_each_stage_is_a_run_and_one_summary_has_them_all(whole):
    content = json.loads((whole.path / "summary.json").read_text())["stages"]
    assert [(each["name"], each["kind"], each["steps"]) for each in content] == [
        ("imitate", "supervised", 3),
        ("prefer", "preference", 2),
        ("learn", "reinforcement", 2),
    ]
    entropies = content[0]["cross_entropy"]
    assert entropies["after"] < entropies["before"]
    lines = (whole.path / "prefer/logs/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["preference/loss"] for line in lines if "preference/loss" in line]
    assert losses[0] == pytest.approx(math.log(2)) and losses[1] < losses[0]
    for name in NAMES:
        for file in ("episodes.sqlite", "summary.json", "attempts/0001", "logs/metrics.jsonl"):
            assert (whole.path / name / file).exists(), (name, file)


def test_a_stage_begins_from_the_last_checkpoint_of_the_one_before(whole):
    config = (whole.path / "prefer" / "config.yaml").read_text()
    assert "toy/imitate/checkpoints/step_000003" in config


def test_the_same_command_again_says_that_all_stages_are_complete(whole):
    before = whole.digests()
    assert whole.finish() == 0
    assert "already complete: stages imitate, prefer, learn in " in whole.stdout()
    assert whole.digests() == before


@pytest.mark.parametrize("seed", range(2))
def test_stages_that_are_killed_at_any_moment_end_with_the_same_weights(whole, tmp_path, seed):
    run, rng = StagedRun(tmp_path), random.Random(seed)
    for stage, step in (("imitate", 3), ("prefer", 1), ("learn", 1)):
        with ended(run.start()) as process:
            has_come = partial(run.has_saved, stage, step)
            assert wait_until(has_come, process), run.stderr()
            time.sleep(rng.random() * 0.5)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    assert run.finish() == 0, run.stderr()
    assert run.digests() == whole.digests()


def test_adapters_of_a_stage_are_merged_into_the_model_of_the_next(tmp_path):
    lora = "+ajet.stages.imitate.trainer_common.lora.rank=2"
    run = StagedRun(tmp_path, lora)
    assert run.finish() == 0, run.stderr()
    assert (run.path / "imitate" / "model_000003" / "model.safetensors").exists()
    assert "toy/imitate/model_000003" in (run.path / "prefer" / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+ajet.stages.learn.trainer_common.optim.lrr=1", "stage learn: .*lrr: no such key"),
        ("+ajet.stages.learn.experiment_name=x", "all stages share experiment_name"),
        ("ajet.trainer_common.resume=somewhere", "names the checkpoint of one run"),
    ],
)
def test_a_mistake_in_a_stage_is_one_line_before_the_first_begins(tmp_path, override, message):
    run = StagedRun(tmp_path, override)
    assert run.finish() == 1
    [line] = run.errors()
    assert re.search(message, line), line
    assert not run.path.exists()
