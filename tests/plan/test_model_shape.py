"""What is counted in a model on the meta device, against the engine and by hand."""

import pytest
import torch
from transformers import AutoConfig

from ajet.core.errors import ConfigError, ModelError
from ajet.core.model.decoder import Decoder
from ajet.core.model.flat_decoder import flat_decoder, has_flat_decoder
from ajet.core.update.layouts import make_layout
from ajet.core.update.settings import LoraSettings, kept_values
from ajet.engines.hf_forward import HfForward
from ajet.plan.cpu_plan import with_first_layers
from ajet.plan.memory import GIB, RUNTIME_GIB, EngineMemoryInputs, cache_tokens
from ajet.plan.model_shape import Experts, meta_model, shape_of
from tests.core.model.families import family_model
from tests.plan.shapes import NO_ADAPTERS, TINY, dense, published, qwen_0_5b, tiny


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_row_keeps_as_many_bytes_as_in_the_engine_and_takes_its_path(name):
    model = family_model(name).to(torch.bfloat16)
    shape, decoder = tiny(name), flat_decoder(model) if has_flat_decoder(model) else None
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    assert shape.has_tree == (make_layout(model, "auto").name == "tree")
    assert shape.has_decoder == Decoder.supports(model)
    if decoder is not None and decoder.longest_plain:
        values = 2 * decoder.num_layers * decoder.num_kv_heads * decoder.head_dim
        assert shape.kept_bytes(2, 1) == 2 * values
    of_row, of_token = HfForward(model, None, 1 << 30)._cache_bytes
    windows = 8 * sum(layer.window is not None for layer in shape.layers)  # a number in each
    kept = [shape.kept_bytes(2, length, has_latents=True) for length in (0, 1)]
    assert kept[0] == of_row - (windows if of_row else 0) and kept[1] - kept[0] == of_token


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("Qwen3-30B-A3B", 30_532_122_624, 3.35),
        ("gpt-oss-20b", 20_914_757_184, 4.19),  # 3.61 without the embedding
        ("DeepSeek-V3", 671_026_404_352, 37.55),
        ("Qwen3-Next-80B-A3B", 79_674_391_296, 3.87),
        ("gemma-3-1b", 999_885_952, 1.0),
        ("LFM2-1.2B", 1_170_340_608, 1.17),
    ],
)
def test_published_models_have_their_numbers_of_parameters(name, parameters, active):
    shape = published(name)
    assert shape.parameters == parameters
    assert round(shape.active_parameters / 1e9, 2) == active


def test_half_a_billion_by_hand():
    shape, [layer] = qwen_0_5b(), set(qwen_0_5b().layers)
    # q and o 2 x 896 x 896, k and v 2 x 896 x 128, gate, up and down 3 x 896 x 4864
    weights = 1_605_632 + 229_376 + 13_074_432
    assert layer.parameters == weights + 896 + 2 * 128 + 2 * 896  # biases and norms
    assert layer.token_flops == 2 * weights and layer.pair_flops == 2 * 2 * 896
    assert layer.kv == 2 * 128 and layer.window is None and layer.state == 0
    assert layer.kept == kept_values(896, 14 * 64, 2 * 64, 4864) == 25_088 and layer.mlp == 9728
    assert shape.parameters == 24 * layer.parameters + 151936 * 896 + 896 == 494_032_768
    assert shape.has_tree and shape.has_decoder and (shape.head_dim, shape.kv_heads) == (64, 2)


def test_a_mixtures_token_is_multiplied_with_its_experts_by_hand():
    shape, [layer] = published("Qwen3-30B-A3B"), set(published("Qwen3-30B-A3B").layers)
    # Queries and output 2 x 2048 x 4096, keys and values 2 x 2048 x 512, a router of 2048 x 128,
    # 8 of 128 experts of 3 x 2048 x 768.
    assert layer.experts == Experts(num=128, chosen=8, parameters=4_718_592)
    assert layer.token_flops == 2 * (16_777_216 + 2_097_152 + 262_144 + 8 * 4_718_592)
    assert layer.pair_flops == 2 * 2 * 4096
    assert shape.read_parameters(1) == pytest.approx(shape.active_parameters)
    assert shape.read_parameters(1000) == pytest.approx(shape.parameters)
    # Hidden 32, queries 32, keys and values 16 each; a shared expert of 24, and 2 of 4 of 24.
    small = tiny("qwen2_moe").layers[0]
    kept = 4 * 32 + 2 * 32 + 2 * 16 + 4 * (24 + 2 * 24) + 2 * (2 * 32) + 2 * 4
    gate = 1  # of the shared expert
    assert (small.kept, small.mlp) == (kept + gate, 2 * 24 + 2 * 2 * 24 + gate)


def test_a_hybrids_layers_are_of_two_kinds_by_hand():
    linear, full = published("Qwen3-Next-80B-A3B").layers[2:4]
    # 4 columns of 2 x 2048 + 4096 values, and 32 float32 states of 128 x 128
    assert (linear.state, linear.wide_state, linear.kv) == (4 * 8192, 32 * 128 * 128, 0)
    assert linear.pair_flops == pytest.approx(0, abs=20)
    assert (full.state, full.kv, full.pair_flops) == (0, 2 * 2 * 256, 2 * 2 * 4096)
    # Beside 10 of 512 experts and a shared one, with its gate and the router: queries with a gate
    # and the output, keys and values.
    mlp = 11 * 3 * 2048 * 512 + 2048 + 2048 * 512
    assert full.token_flops == 2 * (mlp + 3 * 2048 * 4096 + 2 * 2048 * 512)
    shape = published("Qwen3-Next-80B-A3B")
    states = 36 * (4 * 8192 * 2 + 32 * 128 * 128 * 4)
    assert shape.kept_bytes(2, 1000, rows=3) == 3 * states + 1000 * 12 * 2 * 2 * 256 * 2


def test_layers_with_a_window_keep_no_more_than_it():
    shape = published("gemma-3-1b")  # 4 of 26 layers see all; a key and value of 256 each
    assert [layer.window for layer in shape.layers[:7]] == [512] * 5 + [None, 512]
    assert shape.kept_bytes(2, 100) == 26 * 100 * 1024
    assert shape.kept_bytes(2, 10_000) == (4 * 10_000 + 22 * 512) * 1024
    assert shape.kept_bytes(2, 10_000, rows=100) == 26 * 10_000 * 1024


def test_servers_keep_latents_and_each_gpu_has_all_of_them():
    shape = published("DeepSeek-V3")
    assert shape.kept_bytes(2, 1, has_latents=True) == 61 * (512 + 64) * 2 == 70_272
    assert shape.kept_bytes(2, 1) == 61 * 2 * 128 * 192 * 2
    inputs = EngineMemoryInputs(tensor_parallel=16, share=0.9)
    free = (0.9 * 141 - RUNTIME_GIB) * GIB - 2 * shape.parameters / 16
    assert cache_tokens(shape, 141, inputs) == int(free / 70_272)


def test_a_step_reads_the_experts_that_its_rows_choose():
    experts = Experts(num=4, chosen=2, parameters=10)
    # One row reads 2 of 4. The second chooses each of the other two with probability 1/2.
    assert [40 - experts.unread(rows) for rows in (0, 1, 2)] == [0, 20, 30]
    assert experts.idle == 20


def test_adapters_are_rank_times_in_and_out_of_the_modules_that_the_config_names():
    # q 8+8, o 8+8, k 8+4, v 8+4, gate 8+16, up 8+16, down 16+8: 128; 2 layers
    assert dense(8, 2, 2, 1, 4, 16, 100, tied=True).trained_parameters(3) == 3 * 128 * 2
    fields = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, vocab_size=100)
    config = AutoConfig.for_model("llama", **fields)
    assert shape_of(config, "c", LoraSettings(targets=("q_proj",))).adapted == 2 * (8 + 8)


@pytest.mark.parametrize("name", sorted(NO_ADAPTERS))
def test_adapters_that_peft_refuses_are_refused_before_the_run(name):
    with pytest.raises(ConfigError, match="incompatible with Mamba-based models"):
        shape_of(AutoConfig.for_model(name, **TINY[name]), name, LoraSettings())


def test_a_model_that_transformers_cannot_build_is_one_line():
    config = AutoConfig.for_model("llama", hidden_size=32, num_attention_heads=2, head_dim=-1)
    with pytest.raises(ModelError) as error:
        shape_of(config, "config.json")
    assert str(error.value).startswith("config.json: transformers cannot build the model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_model_of_the_first_layers_has_these(name):
    config, shape = AutoConfig.for_model(name, **TINY[name]), tiny(name)
    for num in range(1, len(shape.layers)):
        first = meta_model(with_first_layers(config, shape, num))
        weights = sum(weight.numel() for weight in first.parameters())
        rest = sum(layer.parameters for layer in shape.layers[num:])
        if name != "gemma4_text":  # whose tables grow with the layers
            assert weights == shape.parameters - rest
        assert weights - shape.vocab * shape.hidden >= sum(
            layer.parameters for layer in shape.layers[:num]
        )
