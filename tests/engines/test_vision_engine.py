"""The in-process engine over models that see images."""

import numpy as np
import pytest
import torch

from ajet.core.images.image import Image
from ajet.core.images.image_ids import image_ids
from ajet.core.images.store import ImageStore
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.model.load import load_model
from ajet.core.update.layouts import make_layout
from ajet.core.update.layouts.layout import rows_of
from ajet.engines.in_process import InProcessEngine
from tests.core.model.test_vision import NAMES, precision, prompt, sample
from tests.vision_models import picture, save_vision_model


@pytest.fixture(scope="module", params=NAMES)
def loaded(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_vision_model(request.param, folder)
    return load_model(str(folder), device="cpu", dtype="float64", images=ImageStore())


def add(loaded, seed, *size):
    store = loaded.vision.processor.store
    return store.add(Image.from_picture(picture(seed, *size), store.limits)).key


async def sampled(engine, prompts):
    sampling = SamplingParams(temperature=1.0, max_tokens=5, seed=1)
    return await engine.generate_together(
        [(ids, sampling, f"e{number}/0") for number, ids in enumerate(prompts)]
    )


def trainer_logprobs(loaded, completions):
    """The log-probabilities of the sampled tokens as the tree layout computes them."""
    samples = [
        sample([*each.prompt_ids, *each.token_ids], len(each.token_ids)) for each in completions
    ]
    rows = rows_of(samples)
    with torch.no_grad():
        output = make_layout(loaded.model, "tree").forward(rows)
        logits = output.head(output.features_UD)[output.index_M]
    targets = torch.from_numpy(np.concatenate([row.targets for row in rows]))
    return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0].numpy()


async def test_what_the_engine_samples_is_what_the_trainer_computes(loaded):
    one, two = add(loaded, 0, 16, 24), add(loaded, 1, 24, 24)
    prompts = [
        prompt(loaded, ["look: ", one, "\nnow ", two, " go"]),
        prompt(loaded, ["look: ", one, "\nnow ", one, " go"]),
        prompt(loaded, ["look: ", one, "\nnow ", two, " go"]),
        prompt(loaded, ["no image"]),
    ]
    engine = InProcessEngine(loaded.model, stop_token_ids=(), deterministic=False)
    encoded = loaded.vision.num_encoded
    completions = await sampled(engine, prompts)
    assert loaded.vision.num_encoded - encoded <= 2
    logprobs = np.concatenate([each.logprobs for each in completions])
    assert np.allclose(
        logprobs, trainer_logprobs(loaded, completions), rtol=0, atol=precision(loaded)
    )

    # The next turn of the first two: a reply, and a third image.
    three = add(loaded, 2, 16, 32)
    more = prompt(loaded, [" then ", three, " ok"])
    again = [[*each.prompt_ids, *each.token_ids, *more] for each in completions[:2]]
    completions = await sampled(engine, again)
    assert engine.stats.cached_prompt_tokens > 0
    await engine.close()
    logprobs = np.concatenate([each.logprobs for each in completions])
    assert np.allclose(
        logprobs, trainer_logprobs(loaded, completions), rtol=0, atol=precision(loaded)
    )


async def test_an_image_that_sees_itself_both_ways_is_not_divided(tmp_path, monkeypatch):
    """Within the window the engine computes by chunks, here of 3 tokens; an image has 4."""
    monkeypatch.setattr("ajet.engines.flat_forward.MAX_CHUNK", 3)
    save_vision_model("gemma3", tmp_path, text={"sliding_window": 256})
    loaded = load_model(str(tmp_path), device="cpu", dtype="float64", images=ImageStore())
    one, two = add(loaded, 0, 16, 24), add(loaded, 1, 24, 24)
    engine = InProcessEngine(
        loaded.model, stop_token_ids=(), deterministic=False, max_model_len=200
    )
    for ending in (" go", " stay"):  # the second shares a part of the first
        pieces = ["look: ", one, "\nnow ", two, ending]
        completions = await sampled(engine, [prompt(loaded, pieces), prompt(loaded, ["hi ", one])])
        logprobs = np.concatenate([each.logprobs for each in completions])
        expected = trainer_logprobs(loaded, completions)
        assert np.allclose(logprobs, expected, rtol=0, atol=precision(loaded))
    assert engine.stats.cached_prompt_tokens > 8
    await engine.close()


async def test_a_request_with_an_image_that_is_not_there_fails_alone(loaded):
    engine = InProcessEngine(loaded.model, stop_token_ids=(), deterministic=False)
    sampling = SamplingParams(temperature=1.0, max_tokens=2, seed=1)
    with pytest.raises(Exception, match="no image has the key 000000000007"):
        await engine.generate([1, *image_ids(7, 4).tolist(), 1], sampling, "a/0")
    assert len((await engine.generate([1, 2], sampling, "b/0")).token_ids) == 2
    with pytest.raises(ValueError, match="end with one"):
        await engine.generate([1, *image_ids(add(loaded, 0), 4).tolist()], sampling, "c/0")
    await engine.close()
