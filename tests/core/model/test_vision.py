"""Images in the text model: every layout computes what transformers computes for the whole."""

import numpy as np
import pytest
import torch

from ajet.core.images.image import Image
from ajet.core.images.image_ids import image_ids, with_placeholders
from ajet.core.images.store import ImageStore
from ajet.core.model.load import load_model
from ajet.core.model.precision import to_float64
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from tests.vision_models import FAMILIES, picture, save_vision_model

NAMES = [name for name in FAMILIES if name != "gemma3"]


@pytest.fixture(scope="module", params=NAMES)
def seen(request, tmp_path_factory):
    """A loaded checkpoint, the whole model in float64, and the keys of three images."""
    folder = tmp_path_factory.mktemp(request.param)
    whole = save_vision_model(request.param, folder).double()
    to_float64(whole)
    store = ImageStore()
    loaded = load_model(str(folder), device="cpu", dtype="float64", images=store)
    sizes = [(16, 24), (24, 24), (16, 32)]
    pictures = [picture(n, *size) for n, size in enumerate(sizes)]
    keys = [store.add(Image.of_picture(each, store.limits)).key for each in pictures]
    return loaded, whole, keys


def prompt(loaded, pieces):
    """The ids of texts and images; an image is given by its key."""
    ids = []
    for piece in pieces:
        if isinstance(piece, str):
            ids += loaded.tokenizer.encode(piece, add_special_tokens=False)
            continue
        expansion = loaded.vision.processor.expansion(piece)
        written = loaded.tokenizer.encode(expansion.text, add_special_tokens=False)
        places = iter(image_ids(piece, expansion.num_tokens).tolist())
        holder = loaded.vision.processor.image_token_id
        ids += [next(places) if token == holder else token for token in written]
    return ids


def whole_logits(loaded, whole, ids, keys):
    """What transformers' own model computes from pixels."""
    holder = loaded.vision.processor.image_token_id
    plain = torch.tensor([with_placeholders(ids, holder)])
    inputs = [loaded.vision.processor.inputs(key) for key in keys]
    tiled = int(inputs[0]["pixel_values"].ndim == 5)  # SmolVLM: [1, tiles, ...]
    pixels = {
        name: torch.cat([each[name] for each in inputs], dim=tiled)
        for name in inputs[0]
    }
    if "pixel_values" in pixels:
        pixels["pixel_values"] = pixels["pixel_values"].double()
    if "image_grid_thw" in pixels:
        pixels["mm_token_type_ids"] = (plain == holder).int()
    with torch.no_grad():
        return whole(input_ids=plain, **pixels).logits[0]


def sample(ids, num_trained, episode="e"):
    mask = np.arange(len(ids)) >= len(ids) - num_trained
    zeros = np.zeros(len(ids), np.float32)
    return TrainingSample(
        episode, "g", np.array(ids, np.int64), mask, zeros, zeros + mask, (), 0, 0
    )


@pytest.mark.parametrize("layout", ["padded", "packed", "tree"])
def test_each_layout_computes_the_logits_of_the_whole_model(seen, layout):
    loaded, whole, (one, two, three) = seen
    conversations = [
        (["what is ", one, " and ", two, "?\n", "abc"], [one, two]),
        (["what is ", one, " and ", two, "?\n", "xyzxyz"], [one, two]),
        (["what is ", one, " and ", three, "?\n", "abc"], [one, three]),
        (["no image here", "abc"], []),
    ]
    ids = [prompt(loaded, pieces) for pieces, _ in conversations]
    samples = [
        sample(each, len(pieces[-1])) for each, (pieces, _) in zip(ids, conversations, strict=True)
    ]
    made = make_layout(loaded.model, layout)
    rows = rows_of(samples)
    with torch.no_grad():
        output = made.forward(rows)
        logits = output.head(output.features_UD)[output.index_M]
    expected = []
    for row, (_, keys), each in zip(rows, conversations, ids, strict=True):
        if keys:
            expected.append(whole_logits(loaded, whole, each, keys)[row.positions])
        else:
            with torch.no_grad():
                expected.append(whole(input_ids=torch.tensor([each])).logits[0][row.positions])
    assert torch.allclose(logits, torch.cat(expected), rtol=0, atol=1e-9)
    if layout == "tree":
        assert made.num_computed(rows) < sum(map(len, rows))
