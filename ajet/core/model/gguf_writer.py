"""Writes a model as a GGUF file, which llama.cpp and what builds on it load. Only what is known to
be computed the same way there is written: Llama, Qwen2 and Qwen3 with plain rotary positions, and
byte-level BPE whose splitting of text llama.cpp has under a name. Anything else is refused:
llama.cpp would load it and answer worse.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.model.load import LoadedModel
from ajet.core.text.error_text import extra_advice

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Values of `model_type`, which are the names of the architectures in GGUF, too."""
FILE_TYPES = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16", "q8_0": "MOSTLY_Q8_0"}
BLOCK = 32
"""The weights of a block of q8_0; a matrix with other rows is stored in f16."""
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PRE_TOKENIZERS = {
    f"split {_WORDS}{_REST}, bytes": "qwen2",
    f"split {_WORDS}{{1,3}}{_REST}, bytes": "llama-bpe",
    "words as bytes": "gpt-2",
    "digits one by one, words as bytes": "smollm",
}
"""Maps what a tokenizer does before BPE to llama.cpp's name for it."""


def write_gguf(loaded: LoadedModel, model: Any, file: Path, file_type: str) -> None:
    """Writes `model`, which has the tokenizer of `loaded`. Raises ModelError for a model that
    cannot be written, before anything is."""
    try:
        gguf: Any = import_module("gguf")
    except ImportError as error:
        raise ModelError(
            f"writing GGUF needs a package ({error}): {extra_advice('gguf')}",
            code=Code.PACKAGE_MISSING,
        ) from error
    config = model.config
    _check_family(loaded, config)
    pre = _pre_tokenizer(loaded.tokenizer)
    # The writer needs the whole file's size first, so the tensors are there at once.
    tensors = dict(_tensors(gguf, model, file_type))
    writing = file.with_name(f".writing_{file.name}")
    writer = gguf.GGUFWriter(writing, config.model_type)
    _add_sizes(writer, config)
    writer.add_file_type(gguf.LlamaFileType[FILE_TYPES[file_type]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _add_tokenizer(gguf, writer, loaded.tokenizer, config.vocab_size, pre)
    for name, (tensor, raw_type) in tensors.items():
        writer.add_tensor(name, tensor, raw_dtype=raw_type)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        writing.replace(file)
    except OSError as error:
        writing.unlink(missing_ok=True)
        raise ModelError(
            f"{file} was not written: {error.strerror}", code=Code.OUTPUT_NOT_WRITTEN
        ) from error


def _refused(what: str) -> ModelError:
    families = "Llama, Qwen2 and Qwen3 with byte-level BPE"
    return ModelError(
        f"GGUF: {what}; it is written for {families}: give --out, and convert the folder with "
        "llama.cpp's convert_hf_to_gguf.py",
        code=Code.GGUF_REFUSED,
    )


def _check_family(loaded: LoadedModel, config: Any) -> None:
    if config.model_type not in ARCHITECTURES or loaded.whole is not None:
        raise _refused(f"the model is of family {config.model_type!r}")
    rope = dict(getattr(config, "rope_parameters", None) or {})
    kinds = getattr(config, "layer_types", None) or []
    wrong = {
        f"hidden_act {config.hidden_act}": config.hidden_act != "silu",
        f"rotary positions {rope.get('rope_type')}": rope.get("rope_type", "default") != "default",
        "sliding windows": any(kind != "full_attention" for kind in kinds),
        "biases in attention": config.model_type != "qwen2"
        and getattr(config, "attention_bias", False),
        "biases in the MLP": getattr(config, "mlp_bias", False),
    }
    # Each of them loads there without a word, and computes something else.
    for what, is_wrong in wrong.items():
        if is_wrong:
            raise _refused(f"the model has {what}")


def _add_sizes(writer: Any, config: Any) -> None:
    # Without these llama.cpp takes hidden_size / heads, which is wrong for Qwen3.
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _tensors(gguf: Any, model: Any, file_type: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yields GGUF's name, and the stored values with their type, of each weight. Vectors stay in
    float32, as llama.cpp's own converter does it."""
    config = model.config
    architectures = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[config.model_type], config.num_hidden_layers)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    for name, tensor in model.state_dict().items():
        if tied and name == "lm_head.weight":  # llama.cpp uses the embedding where it is missing
            continue
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise _refused(f"the weight {name} has no name there")
        values = tensor.detach().to("cpu", torch.float32)
        if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            is_query = name.endswith("q_proj.weight")
            values = _paired(
                values, config.num_attention_heads if is_query else config.num_key_value_heads
            )
        yield target, _stored(gguf, target, values.numpy(), file_type)


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of each head: transformers turns dimension i with i + D/2, and llama.cpp's
    Llama 2i with 2i + 1."""
    rows, columns = weight.shape
    # (head, half, i, column) -> (head, i, half, column): the rows i and i + D/2 become neighbours.
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


def _stored(gguf: Any, name: str, values: np.ndarray, file_type: str) -> tuple[np.ndarray, Any]:
    if values.ndim < 2:
        file_type = "f32"
    elif file_type == "q8_0" and values.shape[-1] % BLOCK:
        file_type = "f16"
    kind = gguf.GGMLQuantizationType[file_type.upper()]
    with np.errstate(over="ignore"):
        stored = gguf.quants.quantize(values, kind)
    if kind is gguf.GGMLQuantizationType.F16 and not np.isfinite(stored).all():
        raise ModelError(
            f"GGUF: {name} has numbers that float16 cannot hold; give --type bf16 or f32",
            code=Code.GGUF_REFUSED,
        )
    return np.ascontiguousarray(stored), kind


def _pre_tokenizer(tokenizer: Any) -> str:
    """Returns llama.cpp's name of how the tokenizer splits text before BPE."""
    fast = json.loads(tokenizer.backend_tokenizer.to_str()) if tokenizer.is_fast else {}
    model = fast.get("model") or {}
    # The serialized form is compared: two tokenizers with one form split alike.
    steps = fast.get("pre_tokenizer") or {}
    steps = steps["pretokenizers"] if steps.get("type") == "Sequence" else [steps]
    normalizer = (fast.get("normalizer") or {}).get("type", "NFC")
    name = PRE_TOKENIZERS.get(", ".join(map(_described, steps)))
    is_bpe = model.get("type") == "BPE" and not model.get("byte_fallback")
    # A word that is a token as a whole is taken before merging, where llama.cpp does that, too.
    same_words = bool(model.get("ignore_merges")) == (name == "llama-bpe")
    if name is None or not is_bpe or normalizer != "NFC" or not same_words:
        raise _refused("the tokenizer splits text in a way that has no known name in llama.cpp")
    return name


def _described(step: dict[str, Any]) -> str:
    """Returns a step of splitting as a key of `PRE_TOKENIZERS`; another text for any other step."""
    match step:
        case {
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }:
            return f"split {regex}"
        case {"type": "Digits", "individual_digits": True}:
            return "digits one by one"
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": uses_regex}:
            return "words as bytes" if uses_regex else "bytes"
    return f"other step {step.get('type')}"


def _add_tokenizer(gguf: Any, writer: Any, tokenizer: Any, vocab_size: int, pre: str) -> None:
    types = gguf.TokenType
    fast = json.loads(tokenizer.backend_tokenizer.to_str())
    # Ids without a token are there in the model's matrices, and must have a name.
    tokens = [f"[PAD{number}]" for number in range(vocab_size)]
    kinds = [types.UNUSED] * vocab_size
    for token, number in fast["model"]["vocab"].items():
        tokens[number], kinds[number] = token, types.NORMAL
    for added in fast["added_tokens"]:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = types.CONTROL if added["special"] else types.USER_DEFINED
    # In order of rank. Older tokenizer.json files have the pairs as one text, as GGUF has them.
    pairs = fast["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in pairs])
    numbers = {
        writer.add_bos_token_id: tokenizer.bos_token_id,
        writer.add_eos_token_id: tokenizer.eos_token_id,
        writer.add_pad_token_id: tokenizer.pad_token_id,
    }
    for add, number in numbers.items():
        if number is not None:
            add(number)
    # A template of the post-processor adds it, which llama.cpp does not read.
    begins_with = tokenizer("a").input_ids[:1]
    writer.add_add_bos_token(begins_with == [tokenizer.bos_token_id])
    if isinstance(tokenizer.chat_template, str):
        writer.add_chat_template(tokenizer.chat_template)
