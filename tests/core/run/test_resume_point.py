"""Which checkpoint a run goes on from, and what is set aside before."""

import pytest
import torch

from ajet.core.record.run_folder import RunFolder
from ajet.core.run.run_state import find_resume_point
from tests.core.update.update_fixtures import save_checkpoint


@pytest.fixture
def folder(tmp_path):
    with RunFolder.open(tmp_path / "run") as folder:
        yield folder


def save(folder, *steps):
    for step in steps:
        tensors = {"model.a": torch.full((2,), float(step)), "b": torch.zeros(1)}
        save_checkpoint(folder.checkpoints, step, tensors, {"run": {"step": step}}, keep=9)


def steps(folder):
    return sorted(int(path.name[5:]) for path in folder.checkpoints.glob("step_*"))


def test_auto_is_the_newest_whole_checkpoint_or_the_beginning(folder):
    assert find_resume_point(folder, "auto") is None
    save(folder, 1, 2)
    found = find_resume_point(folder, "auto")
    assert (found.step, found.state, found.path.name) == (2, {"run": {"step": 2}}, "step_000002")
    assert steps(folder) == [1, 2]


def test_disable_begins_anew_whatever_is_there(folder):
    save(folder, 1, 2)
    assert find_resume_point(folder, "disable") is None


def test_a_path_is_that_checkpoint_and_later_ones_are_set_aside(folder):
    save(folder, 1, 2, 3)
    found = find_resume_point(folder, str(folder.checkpoints / "step_000002"))
    assert (found.step, found.state) == (2, {"run": {"step": 2}})
    assert steps(folder) == [1, 2]
