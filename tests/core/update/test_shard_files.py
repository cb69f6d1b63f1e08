"""What is read of a checkpoint of several ranks: all that is this model's, nothing of another."""

import json

import pytest
import torch

from ajet.core.checkpoint.shard_files import read_shards, shards_to_write, write_shards
from ajet.core.errors import CheckpointError
from ajet.core.ranks.ranks import ONE_RANK

TENSORS = {
    "model.a": torch.arange(3.0),
    "optimizer.a.step": torch.tensor(2.0),
    "critic.weights.a": torch.ones(2),
}


@pytest.fixture
def folder(tmp_path):
    write_shards(tmp_path, shards_to_write(TENSORS, copies=False), ONE_RANK)
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


def rewritten(folder, change):
    """Writes the one shard of `folder` again with another header."""
    (shard,) = (folder / "shards").iterdir()
    content = shard.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


def moved(header):
    info = json.loads(header["__metadata__"]["DCP_SHARDING_INFO"])
    info["model.a"]["saved_offsets"] = [10**12]
    header["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(info)


def test_parts_that_do_not_make_up_their_tensor_are_refused_before_it_is_made(folder):
    rewritten(folder, moved)
    with pytest.raises(ValueError, match=r"the shards hold 3 values of model\.a \(10+3,\)"):
        read_shards(folder)


@pytest.mark.parametrize("places", ["{}", "[]", "5", "x", '{"model.a": 5}'])
def test_a_shard_that_does_not_say_where_its_parts_belong_is_refused(folder, places):
    rewritten(folder, lambda header: header["__metadata__"].update(DCP_SHARDING_INFO=places))
    with pytest.raises(ValueError, match=r"where its parts belong|Expecting value"):
        read_shards(folder)
