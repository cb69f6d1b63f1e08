"""Held-out tasks are never the training rows, and where there are none nothing is measured."""

import json
from pathlib import Path

import pytest

from ajet.backbones.evaluating import Subject, evaluate_subject
from ajet.core.config import AjetConfig, load_config
from ajet.core.errors import AjetError, ConfigError, DataError
from ajet.core.task.reader import make_reader
from ajet.sources.prepare import DataRecipe, write_splits

HUGGINGFACE = ("type=huggingface_dat_repo", "huggingface_dat_repo.dataset_path=train.jsonl")


def config_of(folder: Path, *overrides: str) -> AjetConfig:
    rows = [{"question": f"q{i}", "answer": f"#### {i}"} for i in range(3)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.yaml").write_text("ajet: {model: {path: m}, rollout: {user_workflow: w.py->W}}")
    return load_config(folder / "run.yaml", [f"ajet.task_reader.{text}" for text in overrides])


def test_one_file_is_the_training_split_alone(tmp_path, warnings):
    reader = make_reader(config_of(tmp_path, *HUGGINGFACE))
    assert len(reader.get_training_tasks()) == 3 and warnings == []
    assert reader.get_validation_tasks() == []
    assert len(warnings) == 1
    assert f"no validation tasks: {tmp_path}/train.jsonl is one file" in warnings[0]


@pytest.mark.parametrize("split", ["tset", "train"])
def test_a_split_asked_of_one_file_is_refused(tmp_path, split):
    named = f"huggingface_dat_repo.validation_split={split}"
    reader = make_reader(config_of(tmp_path, *HUGGINGFACE, named))
    with pytest.raises(ConfigError, match=f"validation_split={split}: .*train.jsonl is one file"):
        reader.get_validation_tasks()


def test_prepare_data_does_not_make_two_splits_of_one_file(tmp_path):
    config_of(tmp_path)
    recipe = DataRecipe("gsm8k", source=tmp_path / "train.jsonl")
    with pytest.raises(DataError, match=r"--from .*train\.jsonl: one file cannot be both splits"):
        write_splits(recipe, tmp_path / "out", "jsonl")
    assert not (tmp_path / "out").exists()


OWN = """
from ajet import BaseTaskReader, Task
class Own(BaseTaskReader):
    def get_training_tasks(self): return [Task("a", "q")]
    def get_validation_tasks(self): return []
"""


@pytest.mark.parametrize(
    ("overrides", "mend"),
    [
        (HUGGINGFACE, "set ajet.task_reader.huggingface_dat_repo.validation_split"),
        (
            ("type=jsonl_dataset_file", "jsonl_dataset_file.training.file_path=train.jsonl"),
            "set ajet.task_reader.jsonl_dataset_file.validation.file_path",
        ),
        (
            ("type=random_dummy", "random_dummy.num_validation=0"),
            "set ajet.task_reader.random_dummy.num_validation",
        ),
        (("type=own.py->Own",), "give some in own.py->Own"),
    ],
)
def test_no_validation_task_is_an_error_of_eval_and_not_a_table_of_nan(tmp_path, overrides, mend):
    (tmp_path / "own.py").write_text(OWN)
    with pytest.raises(AjetError) as error:
        evaluate_subject(config_of(tmp_path, *overrides), Subject())
    assert str(error.value) == f"there is no validation task; {mend} or pass --split training"
