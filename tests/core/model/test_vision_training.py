"""A vision tower that is trained with the text model."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from ajet.core.images.image import Image
from ajet.core.images.store import ImageStore
from ajet.core.model.load import load_model
from ajet.core.model.precision import to_float64
from ajet.core.update.export import export_model
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.core.update.policy import Policy
from ajet.core.update.settings import UpdateSettings
from tests.core.model.test_vision import NAMES, precision, prompt, sample, whole_logits
from tests.core.update.update_fixtures import save_checkpoint
from tests.vision_models import picture, save_vision_model


@pytest.fixture(params=NAMES)
def seen(request, tmp_path):
    """The folder of a checkpoint, it loaded with a trained tower, the whole, and two images."""
    whole = to_float64(save_vision_model(request.param, tmp_path / "begun").double())
    return tmp_path / "begun", *load(tmp_path / "begun"), whole


def load(folder):
    store = ImageStore()
    loaded = load_model(str(folder), device="cpu", dtype="float64", images=store, train_tower=True)
    pictures = [picture(0, 16, 24), picture(1, 24, 24)]
    return loaded, [store.add(Image.from_picture(each, store.limits)).key for each in pictures]


def test_a_trained_tower_has_the_gradient_of_the_whole_model(seen):
    _, loaded, keys, whole = seen
    one, two = keys
    ids = [prompt(loaded, ["see ", one, " and ", two, " say ", text]) for text in ("abc", "xy")]
    rows = rows_of([sample(each, 2) for each in ids])
    for row, each in zip(rows, ids, strict=True):
        logits = whole_logits(loaded, whole, each, keys, grad=True)[row.positions]
        chosen = torch.from_numpy(row.targets)[:, None]
        logits.log_softmax(-1).gather(1, chosen).sum().backward()
    expected = dict(whole.model.named_parameters())

    rtol = 1e-5 if precision(loaded) > 1e-9 else 1e-6
    tower = dict(loaded.model.vision_tower.named_parameters())
    for layout in ("padded", "packed", "tree"):
        loaded.model.zero_grad()
        encoded = loaded.vision.num_encoded
        made = make_layout(loaded.model, layout)
        for row in rows:  # micro-batches, whose gradients add up
            output = made.forward([row])
            logits = output.head(output.features_UD)[output.index_M].log_softmax(-1)
            logits.gather(1, torch.from_numpy(row.targets)[:, None]).sum().backward()
        assert all(weight.grad is None for weight in tower.values())
        loaded.vision.backward()
        assert loaded.vision.num_encoded - encoded == 2  # two images, in two micro-batches
        loaded.vision.forget()
        changed = 0
        for name, weight in tower.items():
            wanted = expected[name].grad
            if wanted is None:
                assert weight.grad is None, name
                continue
            changed += 1
            difference = (weight.grad - wanted).norm()
            assert difference <= rtol * wanted.norm() + 1e-9, name
        assert changed > 5


def test_a_step_trains_the_tower_and_the_export_has_it(seen, tmp_path):
    folder, loaded, (one, two), whole = seen
    policy = Policy(loaded.model, UpdateSettings(lr=1e-2, kl_loss_coef=0.1))
    samples = [sample(prompt(loaded, ["a ", key, " b"]), 2, f"e{key}") for key in (one, two)]
    for each, advantage in zip(samples, (1.0, -1.0), strict=True):
        each.advantages[:] = advantage * each.loss_mask
    reference = policy.reference_scores(samples)
    policy.update(samples)
    assert np.array_equal(policy.reference_scores(samples)[0], reference[0])

    begun = dict(load(folder)[0].model.named_parameters())
    changed = {
        name
        for name, weight in policy.model.named_parameters()
        if name.startswith("vision_tower") and not torch.equal(weight, begun[name])
    }
    assert len(changed) > 5

    path = save_checkpoint(tmp_path / "checkpoints", 1, *policy.state_dict())
    export_model(load(folder)[0], path, tmp_path / "out")
    exported = AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype=torch.float64)
    ids = prompt(loaded, ["see ", one, " and ", two, " ok"])
    row = rows_of([sample(ids, 2)])[0]
    with torch.no_grad():
        output = policy.layout.forward([row])
        found = output.head(output.features_UD)[output.index_M]
    logits = whole_logits(loaded, to_float64(exported.eval()), ids, [one, two])[row.positions]
    assert torch.allclose(found, logits, rtol=0, atol=1e-6)
    # And without the trained tower they are others.
    others = whole_logits(loaded, whole, ids, [one, two])[row.positions]
    assert not torch.allclose(found, others, rtol=0, atol=1e-3)
