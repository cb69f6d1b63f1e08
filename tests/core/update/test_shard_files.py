"""What is read of a checkpoint of several ranks: all that is this model's, nothing of another."""

import pytest
import torch

from ajet.core.errors import CheckpointError
from ajet.core.update.shard_files import read_shards, write_shards

TENSORS = {
    "model.a": torch.arange(3.0),
    "optimizer.a.step": torch.tensor(2.0),
    "critic.weights.a": torch.ones(2),
}


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path, TENSORS)
    return tmp_path


def like(*names):
    return {name: torch.zeros_like(TENSORS[name]) for name in names}


def test_all_is_read_as_it_was_and_nothing_is_said(folder, recwarn):
    recwarn.clear()
    found = read_shards(folder)
    assert not recwarn.list
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in TENSORS.items())


def test_a_critic_that_the_run_has_no_more_is_left_out(folder):
    assert read_shards(folder, like("model.a", "optimizer.a.step")).keys() == {
        "model.a",
        "optimizer.a.step",
    }


def test_what_the_checkpoint_has_not_is_left_to_the_caller(folder):
    more = like(*TENSORS) | {"model.b": torch.zeros(1)}
    assert read_shards(folder, more).keys() == TENSORS.keys()


@pytest.mark.parametrize("missing", ["model.a", "critic.weights.a"])
def test_a_tensor_more_than_the_model_has_is_one_line(folder, missing):
    others = [name for name in TENSORS if name != missing] + ["optimizer.a.step"]
    have = like(*others) | {"critic.weights.b": torch.zeros(1)}
    with pytest.raises(CheckpointError, match=f"does not fit the model: {missing} is not") as said:
        read_shards(folder, have)
    assert "\n" not in str(said.value)


def test_a_tensor_of_another_shape_is_one_line(folder):
    with pytest.raises(CheckpointError, match=r"model\.a \(4,\) is of shape \(3,\)") as said:
        read_shards(folder, like(*TENSORS) | {"model.a": torch.zeros(4)})
    assert "\n" not in str(said.value)
