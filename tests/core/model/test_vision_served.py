"""What an inference server gets of a model that sees images: the checkpoint as it was published."""

import json

import pytest
import torch
from safetensors.torch import load_file

from ajet.core.images.image import Image
from ajet.core.images.image_ids import with_placeholders
from ajet.core.images.store import ImageStore
from ajet.core.model.load import load_model
from ajet.core.model.save import model_files
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from tests.core.model.test_vision import NAMES, prompt
from tests.vision_models import picture, save_vision_model


@pytest.fixture(params=NAMES)
def folder(request, tmp_path):
    save_vision_model(request.param, tmp_path)
    return tmp_path


def load(folder, **options):
    return load_model(str(folder), device="cpu", dtype="float32", images=ImageStore(), **options)


def served(loaded, **settings):
    policy = Policy(loaded.model, UpdateSettings(lr=1e-3, **settings))
    policy.sends_tower = True
    return policy


@pytest.mark.parametrize("train_tower", [False, True])
def test_the_weights_have_the_names_and_values_of_the_checkpoint(folder, train_tower):
    policy = served(load(folder, train_tower=train_tower))
    published, sent = load_file(folder / "model.safetensors"), dict(policy.weights())
    assert sent.keys() == published.keys()
    assert all(torch.equal(sent[name], published[name]) for name in published)
    assert policy.weight_shapes() == {name: tuple(t.shape) for name, t in published.items()}


def test_adapters_are_merged_since_the_server_has_no_text_model_alone(folder):
    policy = served(load(folder), lora=LoraSettings(rank=2, targets=("q_proj",)))
    assert policy.describe_adapters() == "the servers have the whole multimodal model"
    published, sent = load_file(folder / "model.safetensors"), dict(policy.weights())
    assert {name: t.shape for name, t in sent.items()} == {
        name: t.shape for name, t in published.items()
    }


def test_the_files_say_how_images_become_pixels(folder):
    files = model_files(load(folder), is_whole=True)
    assert json.loads(files["config.json"])["model_type"] in NAMES
    pixels = json.loads(files["preprocessor_config.json"])
    # The checkpoint's file leaves them out, and vLLM then normalizes by nothing.
    assert len(pixels["image_mean"]) == len(pixels["image_std"]) == 3
    assert "tokenizer.json" in files


def test_a_server_that_expands_a_prompt_again_has_the_same_ids(folder):
    loaded = load(folder)
    images = loaded.vision.processor
    pictures = [picture(0, 16, 24), picture(1, 24, 24)]
    keys = [images.store.add(Image.from_picture(p, images.store.limits)).key for p in pictures]
    ids = prompt(loaded, ["see ", keys[0], " and ", keys[1], " say ", keys[0], "."])
    short, found = images.unexpanded(ids)
    assert found == [keys[0], keys[1], keys[0]] and len(short) < len(ids)
    text = loaded.tokenizer.decode(short, clean_up_tokenization_spaces=False)
    shown = [images.store.get(key).picture() for key in found]
    expanded = images._processor(text=[text], images=[shown], return_tensors="pt")["input_ids"][0]
    start = int(expanded[0] == loaded.tokenizer.bos_token_id)
    assert expanded[start:].tolist() == with_placeholders(ids, images.image_token_id)
