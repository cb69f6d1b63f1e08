"""Runs with validations on Ray: their engines keep no prefix of one for the episodes after it."""

import sys

import pytest

from tests.e2e.three_backbones import SETTINGS, train_trinity, train_verl
from tests.e2e.toy_run import ToyRun

pytestmark = pytest.mark.ray
STEPS = 2
VALIDATING = [
    *SETTINGS,
    f"ajet.trainer_common.total_training_steps={STEPS}",
    "ajet.trainer_common.val_before_train=true",
    "ajet.trainer_common.test_freq=1",
    "ajet.data.val_max_tasks=2",
    "+ajet.task_reader.jsonl_dataset_file.validation.file_path=tasks.jsonl",
]


@pytest.mark.parametrize(
    ("train", "more"),
    [
        (train_verl, []),
        (train_trinity, ["trinity.max_staleness=1"]),  # episodes run during a validation
    ],
)
def test_the_engines_caches_are_emptied_after_each_validation(
    tmp_path, monkeypatch, ray_session, train, more
):
    from ajet.cluster.engines import Engines
    from ajet.core.record.run_recorder import RunRecorder

    events, empty, record = [], Engines.empty_caches, RunRecorder.validation

    async def telling_empty(self):
        await empty(self)
        events.append("emptied")

    def telling_record(self, step, groups):
        record(self, step, groups)
        events.append(f"validated {step}")

    monkeypatch.setattr(Engines, "empty_caches", telling_empty)
    monkeypatch.setattr(RunRecorder, "validation", telling_record)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    ToyRun(tmp_path)
    assert train([*VALIDATING, *more]).steps == STEPS
    validated = [f"validated {step}" for step in range(STEPS + 1)]
    assert events == [event for each in validated for event in (each, "emptied")]
