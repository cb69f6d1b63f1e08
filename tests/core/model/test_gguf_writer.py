"""A model written as GGUF and read back computes the same; what llama.cpp would compute otherwise
is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from ajet.core.errors import ModelError
from ajet.core.model.gguf_writer import write_gguf
from ajet.core.model.load import LoadedModel, load_model
from tests.conftest import REFERENCES

pytest.importorskip("gguf")
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama with its own head_dim": (LlamaForCausalLM, LlamaConfig(**SIZES, head_dim=32)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=128)),
}
BOUNDS = {"f32": 0.0, "f16": 0.02, "bf16": 0.04, "q8_0": 0.1}
"""The largest difference of a probability, after tokens in an order that no text has."""
IDS = torch.tensor([[5, 17, 300, 42, 7, 7, 911, 64, 3]])


@pytest.fixture(scope="module")
def math():
    return load_model("embedded:math", device="cpu")


def probabilities(model):
    with torch.no_grad():
        return model(IDS % model.config.vocab_size).logits.softmax(-1)


def difference(loaded, model, file, file_type):
    write_gguf(loaded, model, file, file_type)
    back = load_model(str(file), device="cpu").model
    return float((probabilities(back) - probabilities(model)).abs().max())


@pytest.mark.parametrize("file_type", BOUNDS)
def test_a_trained_qwen2_is_read_back_with_the_same_probabilities(math, tmp_path, file_type):
    found = difference(math, math.model, tmp_path / "math.gguf", file_type)
    assert found <= BOUNDS[file_type]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("file_type", ["f32", "q8_0"])
def test_random_models_of_each_family_are_too(math, tmp_path, family, file_type):
    torch.manual_seed(0)
    make, config = FAMILIES[family]
    model = make(config).eval()
    found = difference(math, model, tmp_path / "random.gguf", file_type)
    assert found <= BOUNDS[file_type]


@pytest.mark.parametrize(
    ("file_type", "share"),
    [
        ("f32", 0.0),
        ("f16", 2**-11),  # of the largest of a block, as each weight has 11 bits
        ("bf16", 2**-8),
        # Half a step of 1/127, and 127 steps times the rounding of the step to a float16.
        ("q8_0", (0.5 + 127 * 2**-11) / 127),
    ],
)
def test_a_matrix_is_stored_to_within_the_rounding_of_its_type(math, tmp_path, file_type, share):
    write_gguf(math, math.model, tmp_path / "math.gguf", file_type)
    back = load_model(str(tmp_path / "math.gguf"), device="cpu").model.state_dict()
    for name, weight in math.model.state_dict().items():
        if weight.ndim < 2:
            assert torch.equal(back[name], weight)
            continue
        errors = (back[name] - weight).reshape(-1, 32).abs().amax(-1)
        largest = weight.reshape(-1, 32).abs().amax(-1)
        assert (errors <= share * largest + 2**-24).all(), name


def test_the_tokenizer_and_its_template_are_read_back(math, tmp_path):
    write_gguf(math, math.model, tmp_path / "math.gguf", "q8_0")
    back = load_model(str(tmp_path / "math.gguf"), device="cpu").tokenizer
    messages = [{"role": "user", "content": "What is 12 + 30?\n\n  It's 'x' … ü"}]
    texts = [math.tokenizer.apply_chat_template(messages, tokenize=False), "a  b\n\t12345 don't"]
    for text in texts:
        assert back(text).input_ids == math.tokenizer(text).input_ids
    assert back.chat_template == math.tokenizer.chat_template
    assert back.eos_token_id == math.tokenizer.eos_token_id


def test_a_file_is_whole_or_absent(math, tmp_path):
    (tmp_path / "taken.gguf").mkdir()
    with pytest.raises(ModelError, match="was not written"):
        write_gguf(math, math.model, tmp_path / "taken.gguf", "f16")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.gguf"]


def with_config(**changed):
    config = LlamaConfig(**SIZES, **changed)
    with torch.device("meta"):
        return LlamaForCausalLM(config)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"attention_bias": True}, "biases in attention"),
        ({"mlp_bias": True}, "biases in the MLP"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rotary positions linear",
        ),
    ],
)
def test_a_model_that_llama_cpp_computes_otherwise_is_refused(math, tmp_path, changed, said):
    with pytest.raises(ModelError, match=said):
        write_gguf(math, with_config(**changed), tmp_path / "x.gguf", "f16")
    assert not list(tmp_path.iterdir())


def test_another_family_is_refused(math, tmp_path):
    model = with_config()
    model.config.model_type = "gemma3_text"
    with pytest.raises(ModelError, match=r"family 'gemma3_text'.*convert_hf_to_gguf.py"):
        write_gguf(math, model, tmp_path / "x.gguf", "f16")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\p{L}+|."),
        lambda t: t["pre_tokenizer"].update(pretokenizers=t["pre_tokenizer"]["pretokenizers"][1:]),
        lambda t: t["model"].update(ignore_merges=True),
        lambda t: t.update(normalizer={"type": "Lowercase"}),
    ],
)
def test_a_tokenizer_that_llama_cpp_has_no_name_for_is_refused(math, tmp_path, change):
    described = json.loads(math.tokenizer.backend_tokenizer.to_str())
    change(described)
    other = type(math.tokenizer)(tokenizer_object=Tokenizer.from_str(json.dumps(described)))
    other._tokenizer = Tokenizer.from_str(json.dumps(described))
    with pytest.raises(ModelError, match="splits text"):
        write_gguf(LoadedModel(math.model, other, "x"), math.model, tmp_path / "x.gguf", "f16")


def test_numbers_beyond_float16_are_refused_in_one_line(math, tmp_path):
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e5
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight has numbers that float16"):
        write_gguf(math, model, tmp_path / "x.gguf", "f16")


PROMPTS = (
    "What is 12 + 30?",
    "Compute 45 - 17, then  multiply.\n\n\tIt's 1234567 apples, don't you'll see?",
    "Ünïcode – 東京 😀 and\r\nlines \n \n end ",
)


@pytest.mark.parametrize("family", ["trained", *FAMILIES])
def test_llama_cpp_reads_the_same_tokens_and_answers_the_same(math, tmp_path, family):
    if not (REFERENCES / "xllamacpp").is_dir():
        pytest.skip(
            f"no llama.cpp to compare with: {REFERENCES} lacks it; `make setup` installs it"
        )
    torch.manual_seed(0)
    make, config = FAMILIES.get(family, (None, None))
    model = math.model if make is None else make(config).eval()
    file = tmp_path / "model.gguf"
    # llama.cpp stops at each token that it knows as an end.
    eos = math.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    write_gguf(math, model, file, "f32")
    conversations = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    options = {"tokenize": False, "add_generation_prompt": True}
    texts = [math.tokenizer.apply_chat_template(each, **options) for each in conversations]
    script = Path(__file__).with_name("llama_cpp.py")
    done = subprocess.run(
        [sys.executable, script, file],
        input=json.dumps(texts),
        env=os.environ | {"PYTHONPATH": str(REFERENCES)},
        capture_output=True,
        text=True,
        check=True,
    )
    for text, reply in zip(texts, json.loads(done.stdout.splitlines()[-1]), strict=True):
        ids = torch.tensor([math.tokenizer(text).input_ids])
        with torch.no_grad():
            expected = model(ids).logits[0, -1].log_softmax(-1)
        assert len(reply["first"]) == 5
        assert all(abs(value - float(expected[token])) < 5e-5 for token, value in reply["first"])
        sampled = model.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=eos)
        new = sampled[0, ids.shape[1] :]
        assert reply["prompt_tokens"] == ids.shape[1]
        assert reply["text"] == math.tokenizer.decode(new, skip_special_tokens=True)
