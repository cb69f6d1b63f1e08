"""Reads the shape of a model from its config.json or GGUF header, without weights or torch.

    {"hidden_size": 896, "num_hidden_layers": 24, …}   ->   494,032,768 parameters

Dense decoders with grouped-query attention and a gated MLP: Llama, Mistral, Qwen2, Qwen3. Others
(mixtures of experts, multi-modal models) are refused, since their weights would be counted wrongly.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ajet.cluster.gguf_header import GgufHeader
from ajet.core.error_codes import Code
from ajet.core.error_text import extra_advice, first_line
from ajet.core.errors import ModelError

QKV_BIAS = ("qwen2",)
QK_NORM = ("qwen3",)
EMBEDDED = Path(__file__).parents[1] / "embedded"
DENSE = ("llama", "mistral", "qwen2", "qwen3")
SIZES = ("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder, and the numbers of parameters that follow from them."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def attention_width(self) -> int:
        """Width of the queries, and of the heads' output."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the keys, which is that of the values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        """q, k, v, o; gate, up, down; two norms; the family's biases or head norms."""
        q, kv = self.attention_width, self.kv_width
        attention = self.hidden * (q + 2 * kv) + q * self.hidden
        biases = (q + 2 * kv) if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return attention + biases + 3 * self.hidden * self.intermediate + norms

    @property
    def embedding_parameters(self) -> int:
        """The embedding table, and the output head if it has weights of its own."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters + self.hidden

    def lora_parameters(self, rank: int) -> int:
        """Returns the parameters of adapters on all linear layers: rank x (in + out) each."""
        h, q, kv, mlp = self.hidden, self.attention_width, self.kv_width, self.intermediate
        widths = 2 * (h + q) + 2 * (h + kv) + 3 * (h + mlp)
        return rank * widths * self.layers

    def trained_parameters(self, lora_rank: int) -> int:
        """Returns the parameters that a run trains: all of them, or adapters of this rank."""
        return self.lora_parameters(lora_rank) if lora_rank else self.parameters

    @property
    def kv_values_per_token(self) -> int:
        """Keys and values that a cache keeps of one token."""
        return 2 * self.layers * self.kv_width


def model_shape(path: str, *, download: bool = False) -> ModelShape:
    """Returns the shape of `model.path`, which may be a GGUF file; `download` as for
    `find_config`."""
    file = Path(path).expanduser()
    if file.suffix == ".gguf" and file.is_file():
        return shape_of(GgufHeader.of(file).model_config(), path)
    return read_shape(find_config(path, download=download))


def read_shape(file: Path) -> ModelShape:
    """Returns the shape in a config.json; ModelError for an unknown architecture."""
    return shape_of(_read_json(file), str(file))


def sizes(file: Path) -> dict[str, Any]:
    """Returns the entries of a config.json that all checkpoints of one model share, for models of
    any family."""
    content = _read_json(file)
    text_config = content.get("text_config")
    found = content | text_config if isinstance(text_config, dict) else content
    return {name: found[name] for name in SIZES if name in found}


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Returns the shape from a config.json's content; `where` is named in errors."""
    family = config.get("model_type")
    if family not in DENSE:
        raise ModelError(
            f"{where}: model_type {family!r}: memory is estimated for {', '.join(DENSE)} alone",
            code=Code.MODEL_UNSUPPORTED,
        )
    try:
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        return ModelShape(
            hidden=hidden,
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family in QKV_BIAS or bool(config.get("attention_bias", False)),
            qk_norm=family in QK_NORM,
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ModelError(
            f"{where}: not the config.json of a {family} model: {error}", code=Code.MODEL_NOT_LOADED
        ) from error


def find_config(path: str, *, download: bool) -> Path:
    """Returns the config.json of `model.path`. For a name on the hub it is the cached one; with
    `download` that one file is downloaded if it is not cached."""
    if path.startswith("embedded:"):
        return EMBEDDED / path.removeprefix("embedded:") / "config.json"
    local = Path(path).expanduser()
    if local.is_dir():
        return local / "config.json"
    if local.is_file() or path.endswith(".gguf"):
        raise ModelError(
            f"model '{path}': no config.json: give a folder, a name on the Hub or a .gguf file",
            code=Code.MODEL_NOT_FOUND,
        )
    if find_spec("huggingface_hub") is None:
        raise ModelError(
            f"model '{path}': the Hub's cache cannot be read: {extra_advice('huggingface_hub')}",
            code=Code.PACKAGE_MISSING,
        )
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = try_to_load_from_cache(path, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        if download:
            from huggingface_hub import hf_hub_download

            return Path(hf_hub_download(path, "config.json"))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelError(
            f"model '{path}': no config.json: {first_line(str(error))}", code=Code.MODEL_NOT_FOUND
        ) from error
    raise ModelError(
        f"model '{path}': its config.json is not on this machine", code=Code.MODEL_NOT_FOUND
    )


def _read_json(file: Path) -> dict[str, Any]:
    """Returns the content of a config.json."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file}: no model's config.json can be read there: {error}", code=Code.MODEL_NOT_LOADED
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file}: a model's config.json is a mapping", code=Code.MODEL_NOT_LOADED)
    return content
