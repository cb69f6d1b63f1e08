"""Adapters that travel alone: nothing changes unless all of them fit this model's base weights."""

from dataclasses import replace

import pytest
import torch

from ajet.core.weight_sync.adapters import Adapters
from ajet.core.weight_sync.folder import WeightFolder
from ajet.core.weight_sync.load import BaseWeights, load_weights
from ajet.core.weight_sync.manifest import Manifest, TensorInfo, WeightsError

SENT = {
    "weight.lora_A": torch.tensor([[1.0, 2.0]]),
    "weight.lora_B": torch.tensor([[1.0], [0.0], [-1.0]]),
}


def linear(fill=1.0):
    model = torch.nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.fill_(fill)
        model.bias.zero_()
    return model


def adapters_of(model, scaling=0.5):
    infos = tuple(TensorInfo.of(name, tensor) for name, tensor in model.named_parameters())
    return Adapters({"weight": scaling}, "float32", Manifest(0, infos).checksum)


def test_each_version_is_added_to_the_base_and_not_to_the_one_before(tmp_path):
    model, base, folder = linear(), BaseWeights(), WeightFolder(tmp_path)
    adapters = adapters_of(model)
    for version, factor in ((1, 1.0), (2, 3.0)):
        sent = SENT | {"weight.lora_B": factor * SENT["weight.lora_B"]}
        load_weights(model, folder.write(version, sent.items(), adapters), base=base)
    assert model.weight.tolist() == [[2.5, 4.0], [1.0, 1.0], [-0.5, -2.0]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight.lora_B": None}, r"missing weight\.lora_B"),
        ({"bias.lora_A": torch.ones(1, 2)}, r"bias\.lora_A is not an adapter of this run"),
        (
            {"weight.lora_B": torch.ones(4, 1)},
            r"weight is \[3, 2\], its adapter \[4, 1\] times \[1, 2\]",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_one_line_and_keep_the_old_weights(tmp_path, change, said):
    model = linear()
    sent = {name: tensor for name, tensor in (SENT | change).items() if tensor is not None}
    source = WeightFolder(tmp_path).write(4, sent.items(), adapters_of(model))
    with pytest.raises(WeightsError, match=f"^weights of version 4: {said}$"):
        load_weights(model, source, base=BaseWeights())
    assert torch.equal(model.weight, linear().weight)


def test_adapters_of_a_weight_that_the_model_lacks_are_one_line(tmp_path):
    model = linear()
    sent = {name.replace("weight", "other"): tensor for name, tensor in SENT.items()}
    adapters = replace(adapters_of(model), scalings={"other": 1.0})
    source = WeightFolder(tmp_path).write(4, sent.items(), adapters)
    with pytest.raises(WeightsError, match="the model has no tensor other to add the adapter to"):
        load_weights(model, source, base=BaseWeights())


def test_another_base_than_the_trainers_is_refused(tmp_path):
    source = WeightFolder(tmp_path).write(4, SENT.items(), adapters_of(linear()))
    other = linear(fill=1.5)
    with pytest.raises(WeightsError, match=r"version 4: the engine's base weights are not those"):
        load_weights(other, source, base=BaseWeights())
    assert torch.equal(other.weight, linear(fill=1.5).weight)


def test_a_description_survives_json():
    adapters = adapters_of(linear())
    assert Adapters.loads(adapters.dumps()) == adapters
