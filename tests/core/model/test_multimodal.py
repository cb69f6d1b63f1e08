"""A multimodal checkpoint: its text model is loaded, trained, and exported inside the whole."""

import json

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.model.load import load_model
from ajet.core.update.export import export_model
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from tests.core.model.families import ALL
from tests.core.update.update_fixtures import forked_groups, save_checkpoint
from tests.fakes import chat_tokenizer

VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "depth": 1,
    "num_hidden_layers": 1,
    "num_heads": 2,
    "num_attention_heads": 2,
    "out_hidden_size": 32,
    "image_size": 28,
    "patch_size": 14,
}
CHECKPOINTS = {
    "qwen3_5": ("qwen3_5_text", VISION | {"patch_size": 4, "num_position_embeddings": 16}),
    "gemma3": ("gemma3_text", VISION),
    "gemma4": ("gemma4_text", VISION),
    "mistral3": ("mistral", VISION),
}
IDS = torch.arange(1, 40)[None]
PADDED = UpdateSettings(batch_layout="padded")
LORA = LoraSettings(rank=2, alpha=4, targets=("q_proj", "down_proj"))


def _saved(name, folder):
    """A tiny checkpoint with random weights, as transformers saves it."""
    text, vision = CHECKPOINTS[name]
    config = AutoConfig.for_model(
        name,
        text_config=AutoConfig.for_model(text, **ALL[text]).to_dict(),
        vision_config=vision,
    )
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(config).float().eval()
    whole.save_pretrained(folder)
    chat_tokenizer("qwen2_5").save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 28}')
    return whole


def _text_names(whole):
    """The names of the weights that the text model has."""
    return {
        name
        for name, _ in whole.named_parameters()
        if "language_model" in name or name.startswith("lm_head")
    }


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_text_model_is_trained_and_exported_inside_the_whole(name, tmp_path):
    whole = _saved(name, tmp_path / "begun")
    loaded = load_model(str(tmp_path / "begun"), device="cpu")
    assert isinstance(loaded.model, AutoModelForCausalLM.from_config(loaded.model.config).__class__)
    assert not any("vision" in each for each, _ in loaded.model.named_parameters())
    with torch.inference_mode():
        assert torch.equal(loaded.model(IDS).logits, whole(input_ids=IDS).logits)
    assert {id(each.config) for each in loaded.model.modules() if hasattr(each, "config")} == {
        id(loaded.model.config)
    }
    policy = Policy(loaded.model, UpdateSettings(lr=1e-2))
    assert policy.layout.name == "tree"
    samples = forked_groups(num_groups=1)
    padded = Policy(load_model(str(tmp_path / "begun"), device="cpu").model, PADDED)
    for found, expected in zip(policy.score(samples), padded.score(samples), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    policy.update(samples)
    path = save_checkpoint(tmp_path / "checkpoints", 1, *policy.state_dict())
    export_model(load_model(str(tmp_path / "begun"), device="cpu"), path, tmp_path / "out")

    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == [type(whole).__name__]
    assert (tmp_path / "out" / "preprocessor_config.json").read_text() == '{"size": 28}'
    exported = getattr(transformers, type(whole).__name__).from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        assert torch.equal(exported(input_ids=IDS).logits, policy.model(IDS).logits)
    new = dict(exported.named_parameters())
    changed = {each for each, old in whole.named_parameters() if not torch.equal(old, new[each])}
    assert changed <= _text_names(whole)
    assert len(changed) > len(_text_names(whole)) / 2
    again = load_model(str(tmp_path / "out"), device="cpu").model
    assert all(
        torch.equal(dict(policy.model.named_parameters())[n], w)
        for n, w in again.named_parameters()
    )


def test_adapters_are_merged_into_the_text_model(tmp_path):
    whole = _saved("gemma3", tmp_path / "begun")
    policy = Policy(
        load_model(str(tmp_path / "begun"), device="cpu").model, UpdateSettings(lr=1e-2, lora=LORA)
    )
    policy.update(forked_groups(num_groups=1))
    path = save_checkpoint(tmp_path / "checkpoints", 1, *policy.state_dict())
    begun = load_model(str(tmp_path / "begun"), device="cpu")
    export_model(begun, path, tmp_path / "out", lora=LORA)
    exported = type(whole).from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        found, expected = exported(input_ids=IDS).logits, policy.model(IDS).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_without_weights_the_same_model_is_made(name, tmp_path):
    _saved(name, tmp_path)
    model, meta = (
        load_model(str(tmp_path), device="cpu", with_weights=with_weights).model
        for with_weights in (True, False)
    )
    shapes = [[(n, w.shape) for n, w in each.named_parameters()] for each in (model, meta)]
    assert shapes[0] == shapes[1]
    assert type(meta) is type(model)
    assert all(weight.is_meta for weight in meta.parameters())


def test_a_checkpoint_without_a_language_model_for_its_text_is_one_line(tmp_path):
    config = AutoConfig.for_model("clip")
    config.architectures = ["CLIPModel"]
    config.save_pretrained(tmp_path)
    chat_tokenizer("qwen2_5").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="CLIPModel is multimodal") as error:
        load_model(str(tmp_path), device="cpu")
    assert error.value.code is Code.MODEL_UNSUPPORTED
    assert "\n" not in str(error.value)
