"""The sizes of each family's layers, against transformers' models and by hand."""

import functools
import warnings

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModelForCausalLM

from ajet.cluster.data_sheet import GPUS
from ajet.cluster.episode_size import EpisodeSize
from ajet.cluster.family_shapes import shape_of
from ajet.cluster.layer_shape import Experts
from ajet.cluster.local_plan import with_layers
from ajet.cluster.memory_estimate import (
    GIB,
    RUNTIME_GIB,
    EngineMemoryInputs,
    TrainerMemoryInputs,
    activation_bytes,
    cache_tokens,
)
from ajet.cluster.model_families import FAMILIES
from ajet.cluster.update_time import UpdateInputs, UpdateTime
from ajet.core.errors import ConfigError, ModelError
from ajet.core.inference.engines.hf_forward import HfForward
from ajet.core.model.decoder import Decoder
from ajet.core.model.flat_decoder import flat_decoder, has_flat_decoder
from ajet.core.update.layouts import make_layout
from ajet.core.update.lora import with_lora
from ajet.core.update.settings import LoraSettings
from tests.cluster.published_configs import PUBLISHED
from tests.core.model.families import ALL, FIRST, IDS, family_model

TINY = FIRST | ALL
TINY["glm4_moe"] = TINY["deepseek_v3"] | {"num_key_value_heads": 2, "head_dim": 8}
NO_ADAPTERS = {"falcon_h1", "mamba2"}
NO_DEFAULT = {("helium", "head_dim")}
"""Helium's own default fits models of one width alone."""


def meta_model(config):
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return AutoModelForCausalLM.from_config(config)


def count(weights):
    return sum(weight.numel() for weight in weights)


def count_trained(model):
    """The parameters of adapters of rank 3."""
    adapted = with_lora(model, LoraSettings(rank=3))
    return count(weight for weight in adapted.parameters() if weight.requires_grad)


def published(name):
    return shape_of(PUBLISHED[name], name)


@functools.cache
def tiny(name):
    return shape_of(AutoConfig.for_model(name, **TINY[name]).to_dict(), name)


def test_every_family_that_trains_is_counted():
    assert FAMILIES.keys() == (FIRST | ALL).keys() | {"glm4_moe"}


@pytest.mark.parametrize("name", sorted(TINY))
def test_parameters_and_adapters_are_those_of_transformers_model(name):
    model = meta_model(AutoConfig.for_model(name, **TINY[name]))
    assert tiny(name).parameters == count(model.parameters())
    if name in NO_ADAPTERS:
        with pytest.raises(ConfigError, match="incompatible with Mamba-based models"):
            with_lora(model, LoraSettings(rank=3))
    else:
        assert tiny(name).lora_parameters(3) == count_trained(model)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("deepseek_v3", {"q_lora_rank": None, "attention_bias": True}),
        ("gemma4_text", {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
        ("gemma4_text", {"attention_k_eq_v": True, "num_global_key_value_heads": 1}),
        ("gemma4_text", {"attention_k_eq_v": True, "attention_bias": True}),
        ("gemma4_text", {"hidden_size_per_layer_input": 0, "enable_moe_block": True}
            | {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}),
        ("glm4_moe", {"n_shared_experts": 2}),
        ("lfm2", {"block_ffn_dim_multiplier": 1.3, "block_multiple_of": 8, "conv_bias": True}),
        ("llama", {"num_key_value_heads": None, "head_dim": 20, "mlp_bias": True}),
        ("mamba2", {"use_bias": True, "use_conv_bias": False, "n_groups": 2}),
        ("qwen2_moe", {"mlp_only_layers": [1]}),
        ("qwen3_moe", {"decoder_sparse_step": 2}),
        ("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    ],
)  # fmt: skip
def test_variants_of_a_family_are_counted(name, changed):
    config = AutoConfig.for_model(name, **TINY[name] | changed)
    model = meta_model(config)
    written = shape_of(config.to_dict(), name)
    assert written == shape_of({"model_type": name, **TINY[name], **changed}, name)
    assert written.parameters == count(model.parameters())
    if name not in NO_ADAPTERS:
        assert written.lora_parameters(3) == count_trained(model)


@pytest.mark.parametrize("name", sorted(TINY))
def test_fields_that_are_left_out_or_switched_count_as_in_transformers(name):
    given = AutoConfig.for_model(name, **TINY[name]).to_dict()
    fields = (
        TINY[name] | {"layer_types": given["layer_types"]} if "layer_types" in given else TINY[name]
    )
    changed = [fields | {key: not on} for key, on in given.items() if isinstance(on, bool)]
    for left_out in fields.keys() - IDS.keys():
        if (name, left_out) not in NO_DEFAULT:
            changed.append({key: value for key, value in fields.items() if key != left_out})
    refused = 0
    for own in changed:
        try:
            expected = count(meta_model(AutoConfig.for_model(name, **own)).parameters())
        except (ArithmeticError, RuntimeError, TypeError, ValueError, StrictDataclassError):
            continue  # transformers makes no such model
        try:
            assert shape_of({"model_type": name, **own}, name).parameters == expected, own
        except ModelError:
            refused += 1
    assert refused < len(changed) / 2


@pytest.mark.parametrize("name", sorted(TINY.keys() & (FIRST | ALL).keys()))
def test_a_row_keeps_as_many_bytes_as_in_the_engine_and_takes_its_path(name):
    model = family_model(name).to(torch.bfloat16)
    shape, decoder = tiny(name), flat_decoder(model) if has_flat_decoder(model) else None
    assert shape.has_tree == (make_layout(model, "auto").name == "tree")
    assert shape.has_decoder == Decoder.supports(model)
    for length in (8, 40):  # the windows are of 16 tokens
        is_plain = decoder is not None and decoder.longest_plain >= length
        assert shape.is_plain(length) == (is_plain and decoder.launches_the_same)
    if decoder is not None and decoder.longest_plain:
        values = 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim
        assert shape.kept_bytes(2, 1) == 2 * values
    of_row, of_token = HfForward(model, None, 1 << 30)._cache_bytes
    windows = 8 * sum(layer.window is not None for layer in shape.each_layer)  # a number in each
    kept = [shape.kept_bytes(2, length, has_latents=True) for length in (0, 1)]
    assert kept[0] == of_row - (windows if of_row else 0) and kept[1] - kept[0] == of_token


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("Qwen3-30B-A3B", 30_532_122_624, 3.35),
        ("gpt-oss-20b", 20_914_757_184, 4.19),  # 3.61 without the embedding
        ("Mixtral-8x7B", 46_702_792_704, 12.88),
        ("DeepSeek-V3", 671_026_404_352, 37.55),
        ("GLM-4.5-Air", 106_852_245_504, 13.42),
        ("Qwen3-Next-80B-A3B", 79_674_391_296, 3.87),
        ("gemma-3-1b", 999_885_952, 1.0),
        ("gemma-3-4b", 3_880_263_168, 3.88),  # without the vision tower
        ("SmolLM3-3B", 3_075_098_624, 3.08),
        ("OLMo-2-7B", 7_298_617_344, 7.3),
        ("Seed-OSS-36B", 36_151_104_512, 36.15),
        ("phi-4", 14_659_507_200, 14.66),
        ("LFM2-1.2B", 1_170_340_608, 1.17),
    ],
)
def test_published_models_have_their_numbers_of_parameters(name, parameters, active):
    fields = dict(PUBLISHED[name])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    text_config = config.get_text_config()
    text_config.tie_word_embeddings = config.tie_word_embeddings
    assert published(name).parameters == parameters == count(meta_model(text_config).parameters())
    assert round(published(name).active_parameters / 1e9, 2) == active


def test_a_multimodal_model_says_itself_whether_its_head_is_tied():
    content = PUBLISHED["gemma-3-4b"]
    tied, apart = (shape_of(content | {"tie_word_embeddings": on}, "") for on in (True, False))
    assert published("gemma-3-4b") == tied
    assert apart.parameters - tied.parameters == 262208 * 2560


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba': the sizes of its layers are not known"),
        ({"model_type": ["llama"]}, "model_type ['llama']: the sizes"),
        ({"layer_types": ["full_attention"]}, "it has 1 layer_types for 26 layers"),
        ({"layer_types": ["chunked"] * 26}, "layers of type 'chunked' are not known here"),
        ({"hidden_size": None}, "not the config.json of a gemma3_text model: 'hidden_size'"),
        ({"hidden_size": "wide"}, "not the config.json of a gemma3_text model"),
        ({"num_attention_heads": 0}, "not the config.json of a gemma3_text model"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_line(changed, message):
    with pytest.raises(ModelError) as error:
        shape_of(PUBLISHED["gemma-3-1b"] | changed, "config.json")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_step_reads_the_experts_that_its_rows_choose():
    experts = Experts(num=4, chosen=2, parameters=10, width=6)
    # One row reads 2 of 4. The second chooses each of the other two with probability 1/2.
    assert [40 - experts.unread(rows) for rows in (0, 1, 2)] == [0, 20, 30]
    assert experts.idle == 20
    shape = published("Qwen3-30B-A3B")
    assert shape.read_parameters(1) == pytest.approx(shape.active_parameters)
    assert shape.read_parameters(1000) == pytest.approx(shape.parameters)


def test_layers_with_a_window_keep_and_compute_no_more_than_it():
    shape = published("gemma-3-1b")  # 4 of 26 layers see all; a key and value of 256 each
    assert [layer.window for layer in shape.each_layer[:7]] == [512] * 5 + [None, 512]
    assert shape.kept_bytes(2, 100) == 26 * 100 * 1024
    assert shape.kept_bytes(2, 10_000) == (4 * 10_000 + 22 * 512) * 1024
    assert shape.kept_bytes(2, 10_000, rows=100) == 26 * 10_000 * 1024
    update = UpdateTime(shape, GPUS["h100"], UpdateInputs(3, 2, EpisodeSize(4, 6)))
    # A prompt of 4 has 1 + 2 + 3 + 3 pairs in a window of 3, each token of a reply 3.
    assert update.pairs(window=3) == 3 * (9 + 2 * 18)
    assert update.pairs(window=10) == update.pairs() == 3 * (10 + 2 * 45)


def test_a_state_is_kept_once_for_each_row():
    shape = published("Qwen3-Next-80B-A3B")
    # 36 layers: 4 columns of 2 x 2048 + 4096 values, and 32 float32 states of 128 x 128
    states = 36 * (4 * 8192 * 2 + 32 * 128 * 128 * 4)
    # 12 layers with 2 heads of 256
    assert shape.kept_bytes(2, 1000, rows=3) == 3 * states + 1000 * 12 * 2 * 2 * 256 * 2


def test_servers_keep_latents_and_each_gpu_has_all_of_them():
    shape = published("DeepSeek-V3")
    assert shape.kept_bytes(2, 1, has_latents=True) == 61 * (512 + 64) * 2 == 70_272
    assert shape.kept_bytes(2, 1) == 61 * 2 * 128 * 192 * 2
    inputs = EngineMemoryInputs(tensor_parallel=16, share=0.9)
    free = (0.9 * 141 - RUNTIME_GIB) * GIB - 2 * shape.parameters / 16
    assert cache_tokens(shape, 141, inputs) == int(free / 70_272)


def test_activations_of_experts_by_hand():
    shape = tiny("qwen2_moe")
    # Hidden 32, queries 32, keys and values 16 each; a shared expert of 24, and 2 of 4 of 24.
    layer = 4 * 32 + 2 * 32 + 2 * 16 + 4 * (24 + 2 * 24) + 2 * (2 * 32) + 2 * 4
    backward = 2 * 32 + 2 * (24 + 2 * 24)
    kept = activation_bytes(shape, TrainerMemoryInputs(tokens=10, checkpointing=False))
    assert kept == 10 * 2 * (4 * layer + backward)
    recomputed = activation_bytes(shape, TrainerMemoryInputs(tokens=10))
    assert recomputed == 10 * 2 * (4 * 32 + layer + backward)


def test_an_update_multiplies_a_token_with_its_experts_and_reads_all():
    shape = published("Qwen3-30B-A3B")
    # Queries and output 2 x 2048 x 4096, keys and values 2 x 2048 x 512, 8 of 128 experts of
    # 3 x 2048 x 768, a router of 2048 x 128, norms.
    active = 16_777_216 + 2_097_152 + 8 * 4_718_592 + 262_144 + 4096 + 256
    inputs = UpdateInputs(1, 1, EpisodeSize(1000, 1000), recomputes=False, tokens_of_pass=2000)
    [products] = [p for p in UpdateTime(shape, GPUS["h100"], inputs).parts if p.name == "products"]
    gpu = GPUS["h100"]
    computed = 2 * 3 * 48 * active * 2000 / (0.7 * gpu.flops)
    read = 3 * 2 * 48 * (active + 120 * 4_718_592) / (0.78 * gpu.bandwidth)
    assert read > computed and products.seconds == pytest.approx(read)
    assert "all weights 3 times" in products.note


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_model_of_some_layers_has_these(name):
    config, shape = AutoConfig.for_model(name, **TINY[name]), tiny(name)
    first = [shape.each_layer.index(kind) for kind in dict.fromkeys(shape.each_layer)]
    for index in first:
        chosen = sorted([*first, index, index])
        own = with_layers(config, shape, chosen)
        layers = tuple(shape.each_layer[number] for number in chosen)
        assert shape_of(own.to_dict(), name).each_layer == layers
        weights = count(meta_model(own).parameters())
        assert weights == sum(layer.parameters for layer in layers) + (
            shape.embedding_parameters + shape.others
        )
