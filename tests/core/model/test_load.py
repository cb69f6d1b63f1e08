"""Every place that a model comes from, and one line for each way that it fails."""

import json
import logging
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

from ajet.core.errors import ModelError
from ajet.core.model.load import load_model
from ajet.core.model.tokenizer import EMBEDDED_DIR
from tests.core.model.tiny_gguf import write_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A transformers folder with a three-word tokenizer."""
    path = tmp_path_factory.mktemp("model")
    words = WordLevel({"<unk>": 0, "yes": 1, "no": 2}, unk_token="<unk>")
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words)).save_pretrained(path)
    config = Qwen2Config(
        vocab_size=3,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
    return path


def _error(path, **kwargs) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(str(path), **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_loads_in_float32_on_the_cpu(folder):
    loaded = load_model(str(folder), device="cpu")
    assert loaded.model.dtype == torch.float32
    assert loaded.model.device.type == "cpu"
    assert loaded.tokenizer.convert_tokens_to_ids("no") == 2
    assert loaded.name == str(folder)


def test_float64_is_for_those_who_ask(folder):
    assert load_model(str(folder), dtype="float64", device="cpu").model.dtype == torch.float64


def test_dtype_and_chat_template_can_be_given(folder, tmp_path):
    (tmp_path / "chat.jinja").write_text("{{ messages[0].content }}")
    loaded = load_model(
        str(folder), dtype="bfloat16", device="cpu", chat_template=str(tmp_path / "chat.jinja")
    )
    assert loaded.model.dtype == torch.bfloat16
    messages = [{"role": "user", "content": "yes"}]
    assert loaded.tokenizer.apply_chat_template(messages, tokenize=False) == "yes"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_model_without_weights_is_the_same_but_for_its_memory(folder, dtype):
    whole = load_model(str(folder), dtype=dtype, device="cpu").model
    empty = load_model(str(folder), dtype=dtype, device="cpu", with_weights=False).model
    for of_whole, of_empty in (
        (whole.named_parameters(), empty.named_parameters()),
        (whole.named_buffers(), empty.named_buffers()),
    ):
        for (name, tensor), (other, shape) in zip(of_whole, of_empty, strict=True):
            assert (name, tensor.shape, tensor.dtype) == (other, shape.shape, shape.dtype)
            assert shape.is_meta and not tensor.is_meta


def test_a_folder_that_does_not_exist(tmp_path):
    assert "no such file or folder" in _error(tmp_path / "nowhere")


def test_a_folder_without_config(tmp_path):
    assert "no config.json" in _error(tmp_path)


def test_a_folder_without_tokenizer(folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, tmp_path)
    assert "no tokenizer" in _error(tmp_path)


def test_damaged_weights(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "its model does not load" in _error(tmp_path)


def test_weights_that_are_a_pickle(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Path("/")}, protocol=2))
    assert "its model does not load" in _error(tmp_path)


@pytest.mark.parametrize("number", [1e9, "many", -1])
def test_a_config_with_a_number_that_no_model_has(folder, tmp_path, number):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["num_hidden_layers"] = number
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "its config does not load: " in _error(tmp_path)


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
def test_code_of_the_hub_that_a_config_asks_for_is_refused(folder, tmp_path, name):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {name: "kernels-community/x"}))
    assert f"asks for code of the hub ({name}: kernels-community/x)" in _error(tmp_path)


def test_an_architecture_that_nobody_knows(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text('{"model_type": "never_heard_of"}')
    assert "never_heard_of" in _error(tmp_path)


def test_a_file_that_is_no_gguf(folder):
    assert "not a .gguf" in _error(folder / "config.json")


def test_an_embedded_model_that_is_not_there():
    message = _error("embedded:nope")
    assert "embedded:nope" in message and "not in this package" in message


@pytest.mark.skipif(not (EMBEDDED_DIR / "math" / "config.json").is_file(), reason="not built yet")
def test_embedded_math_loads():
    loaded = load_model("embedded:math", device="cpu")
    assert loaded.model.config.vocab_size >= len(loaded.tokenizer)
    assert loaded.tokenizer.chat_template


def test_a_hub_name_without_a_hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = _error("some-org/some-model-that-is-not-cached")
    assert "not in the local cache" in message and "HF_HOME" in message


@pytest.mark.parametrize("device", ["cuda:99", "cuda"])
def test_a_gpu_that_is_not_there(folder, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    assert "use auto or cpu" in _error(folder, device=device)


def test_a_chat_template_that_cannot_be_read(folder, tmp_path):
    assert "give a jinja file" in _error(folder, chat_template=str(tmp_path / "no.jinja"))
    (tmp_path / "chat.jinja").write_bytes(b"\xff")
    message = _error(folder, chat_template=str(tmp_path / "chat.jinja"))
    assert message.endswith("chat.jinja': not a text file in UTF-8")


def test_an_embedded_chat_template(folder):
    loaded = load_model(str(folder), device="cpu", chat_template="embedded:qwen2_5")
    assert "<tool_call>" in loaded.tokenizer.chat_template
    assert "give a jinja file" in _error(folder, chat_template="embedded:qwen9")


@pytest.mark.parametrize("kwargs", [{"dtype": "int3"}, {"device": "abacus"}])
def test_unknown_dtype_or_device(folder, kwargs):
    assert "unknown; use auto" in _error(folder, **kwargs)


def test_gguf_loads_and_can_be_saved(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    loaded = load_model(str(path), device="cpu")
    assert loaded.model.config.model_type == "llama"
    assert loaded.model.config.architectures == ["LlamaForCausalLM"]  # servers go by it
    assert loaded.model.dtype == torch.float32
    ids = loaded.tokenizer.encode("ab", add_special_tokens=False)
    assert loaded.tokenizer.decode(ids) == "ab"
    loaded.model.save_pretrained(tmp_path / "saved")
    loaded.tokenizer.save_pretrained(tmp_path / "saved")
    again = load_model(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(again.model.lm_head.weight, loaded.model.lm_head.weight)


def test_no_progress_bar_is_written_while_a_gguf_is_loaded(tmp_path, capfd):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    load_model(str(path), device="cpu")
    assert capfd.readouterr() == ("", "")


def test_the_weights_of_a_gguf_are_expanded(tmp_path, caplog):
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    logging.getLogger("transformers").propagate = True
    try:
        loaded = load_model(str(path), device="cpu", dtype="bfloat16")
    finally:
        logging.getLogger("transformers").propagate = False
    assert "packed" not in caplog.text  # transformers' word for weights that cannot be trained
    assert all(p.requires_grad for p in loaded.model.parameters())
    linear = loaded.model.model.layers[0].self_attn.q_proj
    assert type(linear) is torch.nn.Linear
    assert linear.weight.dtype == torch.bfloat16
