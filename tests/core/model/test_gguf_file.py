"""A GGUF file is read once for a model, whose bits are those that transformers makes alone."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from ajet.core.errors import ModelError
from ajet.core.model.load import load_model
from tests.core.model.tiny_gguf import write_gguf

gguf = pytest.importorskip("gguf")


@pytest.fixture
def file(tmp_path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf", layers=2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_and_tokenizer_are_those_that_transformers_makes(file, dtype):
    loaded: Any = load_model(str(file), device="cpu", dtype=dtype)
    options = {"gguf_file": file.name}
    tokenizer: Any = AutoTokenizer.from_pretrained(str(file.parent), **options)
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        dtype=getattr(torch, dtype),
        quantization_config=transformers.GgufConfig(dequantize=True),
        **options,
    )
    assert _bits(loaded.model) == _bits(model)
    assert loaded.tokenizer.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert loaded.tokenizer.special_tokens_map == tokenizer.special_tokens_map


@pytest.mark.parametrize("missing", ["gguf", "yaml"])
def test_without_the_package_or_what_it_needs_the_line_says_what_to_install(
    file, monkeypatch, missing
):
    for name in [name for name in sys.modules if name.partition(".")[0] == "gguf"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # as if it were not installed
    with pytest.raises(ModelError, match=rf"needs a package \(.*{missing}.*\): pip install"):
        load_model(str(file), device="cpu")


def test_two_threads_that_load_at_the_same_time_both_get_their_model(tmp_path):
    files = [write_gguf(tmp_path / f"{seed}.gguf", seed=seed) for seed in (0, 1)]
    names = (gguf.GGUFReader, gguf.get_tensor_name_map)
    alone = [_bits(load_model(str(file), device="cpu").model) for file in files]
    with ThreadPoolExecutor(2) as threads:
        loads = [threads.submit(load_model, str(file), device="cpu") for file in files]
        assert [_bits(load.result().model) for load in loads] == alone
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == names


def _bits(model: PreTrainedModel) -> dict[str, bytes]:
    return {
        name: weight.contiguous().view(torch.uint8).numpy().tobytes()
        for name, weight in model.state_dict().items()
    }
