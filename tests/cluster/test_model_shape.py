"""Parameters from a config.json alone, against the published numbers and a model that is loaded."""

import json
from pathlib import Path

import pytest

from ajet.cluster.family_shapes import shape_of
from ajet.cluster.model_shape import find_config, read_shape
from ajet.core.errors import ModelError
from tests.cluster.shapes import dense

QWEN = {"model_type": "qwen2", "tie_word_embeddings": False}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "vocab_size")  # fmt: skip
QWEN_0_5B = {**QWEN, **dict(zip(SIZES, (896, 24, 14, 2, 4864, 151936), strict=True))}
QWEN_0_5B["tie_word_embeddings"] = True
QWEN_7B = {**QWEN, **dict(zip(SIZES, (3584, 28, 28, 4, 18944, 152064), strict=True))}
QWEN_14B = {**QWEN, **dict(zip(SIZES, (5120, 48, 40, 8, 13824, 152064), strict=True))}
LLAMA_8B = dict(zip(SIZES, (4096, 32, 32, 8, 14336, 128256), strict=True))
LLAMA_8B["model_type"] = "llama"
QWEN3_0_6B = dict(zip(SIZES, (1024, 28, 16, 8, 3072, 151936), strict=True))
QWEN3_0_6B |= {"model_type": "qwen3", "head_dim": 128, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (QWEN_0_5B, 494_032_768),
        (QWEN_7B, 7_615_616_512),
        (QWEN_14B, 14_770_033_664),
        (LLAMA_8B, 8_030_261_248),
        (QWEN3_0_6B, 596_049_920),
    ],
)
def test_parameters_are_those_of_the_published_models(config, parameters):
    assert shape_of(config, "c").parameters == parameters


def test_parameters_are_those_of_a_loaded_model():
    from transformers import AutoModelForCausalLM

    folder = find_config("embedded:math", download=False).parent
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert read_shape(folder / "config.json").parameters == sum(
        weight.numel() for weight in model.parameters()
    )


def test_adapters_are_rank_times_in_and_out_of_every_linear_layer():
    shape = dense(8, 2, 2, 1, 4, 16, 100, tied=True)
    # q 8+8, o 8+8, k 8+4, v 8+4, gate 8+16, up 8+16, down 16+8: 128; 2 layers, rank 3
    assert shape.lora_parameters(3) == 3 * 128 * 2


def test_a_token_in_the_cache_of_qwen_7b_is_56_kib():
    assert shape_of(QWEN_7B, "c").kept_bytes(2, 1) == 2 * 2 * 28 * 4 * 128 == 57_344


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "model_type None: the sizes of its layers are not known here"),
        ('{"model_type": "mamba"}', "model_type 'mamba'"),
        ('{"model_type": "qwen2"}', "not the config.json of a qwen2 model: 'hidden_size'"),
        ("[]", "a model's config.json is a mapping"),
        ("{", "no model's config.json can be read there"),
    ],
)
def test_a_config_that_cannot_be_counted_is_one_line(tmp_path, text, message):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ModelError) as error:
        read_shape(file)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_where_a_config_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps(QWEN_7B))
    assert find_config(str(tmp_path), download=False) == tmp_path / "config.json"
    (tmp_path / "m.txt").touch()
    for path in (str(tmp_path / "m.txt"), "no/where.gguf", "no-such/model", "a b"):
        with pytest.raises(ModelError, match=r"config\.json"):
            find_config(path, download=False)
    with pytest.raises(ModelError, match=r"no model's config\.json can be read"):
        read_shape(find_config("embedded:nothing", download=False))
    assert Path(find_config("embedded:math", download=False)).is_file()
