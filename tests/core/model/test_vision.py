"""Images in the text model: every layout computes what transformers computes for the whole."""

import numpy as np
import pytest
import torch

from ajet.core.errors import ModelError
from ajet.core.images.image import Image
from ajet.core.images.image_ids import image_ids, with_placeholders
from ajet.core.images.store import ImageStore
from ajet.core.model.load import load_model
from ajet.core.model.multimodal import _text_part
from ajet.core.model.precision import to_float64
from ajet.core.model.vision import SEEING
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from tests.core.model.families_page import FLOAT32_INSIDE
from tests.vision_models import picture, save_vision_model

NAMES = sorted(SEEING)


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
    keys = [store.add(Image.from_picture(each, store.limits)).key for each in pictures]
    return loaded, whole, keys


def precision(loaded):
    """The largest difference of equal numbers in float64; norms of Gemma compute in float32."""
    return 1e-6 if loaded.model.config.model_type in FLOAT32_INSIDE else 1e-9


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


def whole_logits(loaded, whole, ids, keys, grad=False):
    """What transformers' own model computes from pixels."""
    holder = loaded.vision.processor.image_token_id
    plain = torch.tensor([with_placeholders(ids, holder)])
    inputs = [loaded.vision.processor.inputs(key) for key in keys]
    tiled = int(inputs[0]["pixel_values"].ndim == 5)  # SmolVLM: [1, tiles, ...]
    pixels = {name: torch.cat([each[name] for each in inputs], dim=tiled) for name in inputs[0]}
    if "pixel_values" in pixels:
        pixels["pixel_values"] = pixels["pixel_values"].double()
    if "image_grid_thw" in pixels:
        pixels["mm_token_type_ids"] = (plain == holder).int()
    if loaded.vision.sees_both_ways:
        pixels["token_type_ids"] = (plain == holder).int()
    with torch.set_grad_enabled(grad):
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
    assert torch.allclose(logits, torch.cat(expected), rtol=0, atol=precision(loaded))
    if layout == "tree":
        assert made.num_computed(rows) < sum(map(len, rows))


def test_each_layout_has_the_gradient_of_the_whole_model(seen):
    loaded, whole, (one, two, _) = seen
    texts = ["abc", "xyz", "abd"]
    ids = [prompt(loaded, ["see ", one, " and ", two, " say ", text]) for text in texts]
    rows = rows_of([sample(each, 3) for each in ids])
    targets = torch.from_numpy(np.concatenate([row.targets for row in rows]))

    whole.zero_grad()
    for row, each in zip(rows, ids, strict=True):
        logits = whole_logits(loaded, whole, each, [one, two], grad=True)[row.positions]
        chosen = torch.from_numpy(row.targets)[:, None]
        logits.log_softmax(-1).gather(1, chosen).sum().backward()
    expected = dict(_text_part(whole, loaded.model, "whole").named_parameters())

    encoded, atol = loaded.vision.num_encoded, precision(loaded)
    for layout in ("padded", "packed", "tree"):
        loaded.model.zero_grad()
        output = make_layout(loaded.model, layout).forward(rows)
        logits = output.head(output.features_UD)[output.index_M]
        logits.log_softmax(-1).gather(1, targets[:, None]).sum().backward()
        for name, parameter in loaded.model.base_model.named_parameters():
            assert torch.allclose(parameter.grad, expected[name].grad, rtol=1e-6, atol=atol), name
    assert loaded.vision.num_encoded == encoded  # kept since the engine or another pass saw them


def test_a_family_that_was_not_compared_is_refused(tmp_path, monkeypatch):
    save_vision_model("gemma3", tmp_path)
    assert load_model(str(tmp_path), device="cpu").vision is None
    monkeypatch.setattr("ajet.core.model.load.SEEING", SEEING - {"gemma3"})
    with pytest.raises(ModelError, match="models of type 'gemma3' do not see images here yet"):
        load_model(str(tmp_path), device="cpu", images=ImageStore())


def test_an_image_is_encoded_once_for_all_rows(seen):
    loaded, _, keys = seen
    loaded.vision.forget()
    encoded = loaded.vision.num_encoded
    ids = [prompt(loaded, [keys[n % 2], text]) for n, text in enumerate(("a", "b", "c", "d"))]
    for layout in ("padded", "tree"):
        with torch.no_grad():
            make_layout(loaded.model, layout).forward(rows_of([sample(each, 1) for each in ids]))
    assert loaded.vision.num_encoded - encoded == 2


def test_positions_are_those_of_transformers(seen):
    loaded, whole, (one, two, three) = seen
    if not loaded.vision.has_axes:
        pytest.skip("positions have one axis")
    ids = prompt(loaded, ["a ", one, "x", two, " b ", three, " c"])
    plain = torch.tensor([with_placeholders(ids, loaded.vision.processor.image_token_id)])
    grids = [loaded.vision.processor.inputs(key)["image_grid_thw"] for key in (one, two, three)]
    kinds = (plain == loaded.vision.processor.image_token_id).int()
    expected, _ = whole.model.get_rope_index(plain, kinds, image_grid_thw=torch.cat(grids))
    assert np.array_equal(loaded.vision.positions(ids), expected[:, 0].numpy())
