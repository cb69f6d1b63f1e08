"""The families of models whose sizes are known: what their config.json files do not say.

    "gemma3_text"   4 norms in a layer, norms of heads, 5 layers with a window before one without

Where a file leaves a field out, transformers' default holds. Not covered: the formulas
(layer_formulas.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

FULL, SLIDING, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"


@dataclass(frozen=True)
class Family:
    """What the models of a family have in common."""

    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """A config.json may leave these fields out, which then have these values."""
    norms: int = 2
    """A layer's norms have so many vectors as wide as the hidden state: weights, and biases where
    there are any."""
    norms_if: tuple[str, bool, int] | None = None
    """Where this field has this value a layer's norms have so many vectors instead."""
    last_norm: int = 1
    """The norm before the head has so many such vectors."""
    qk_norm: Literal["", "head", "biased", "all"] = ""
    """Queries and keys have norms: of one head's width, the same with biases, or of all heads'."""
    qk_switch: str = ""
    """This field says whether there are these norms; where none is named there are."""
    biases: tuple[str, str, str] = ("", "", "")
    """These fields say whether there are biases of queries, keys and values; of attention's output;
    of the MLP. With "yes" there always are."""
    is_gated: bool = True
    """The MLP has a gate: three linear layers."""
    is_joined: Literal["", "mlp", "all"] = ""
    """Gate and up are one linear layer; queries, keys and values too."""
    gated_queries: bool = False
    """Attention's output is gated by as many values, made with the queries."""
    pattern: int | Literal["window"] = 0
    """Without `layer_types`: every so many layers one is of full attention. "window": all layers
    have the window."""
    between: str = SLIDING
    """The other layers are of this type."""
    expert_width: str = ""
    """This field says how wide experts are; where none is named there are no experts."""
    shared_width: str = ""
    """This field says how wide the experts are that all tokens go through, or how many there
    are."""
    adapts_experts: bool = False
    """Adapters on all linear layers are on experts and routers too, and not on other MLPs: peft
    takes the names of earlier releases for them, where they were linear layers."""
    expert_biases: bool = False
    """Experts and router have biases."""
    is_latent: bool = False
    """Keys and values are made of a narrow latent."""
    states: Literal["", "joined", "split", "apart", "lightning"] = ""
    """Gated delta nets have linear layers for queries, keys, values and gate at once ("joined"),
    for these without the gate ("split"), or for each ("apart"); "lightning" is another
    attention."""
    head_gate: str = ""
    """This field says whether each head's output has a gate of its own."""
    has_sinks: bool = False
    """Each head has a score that takes a part of its softmax."""
    others: int = 0
    """A layer has so many further parameters."""
    has_head_bias: bool = False
    has_tree: bool = True
    """The tree layout computes these models (core/model/flat_decoder.py)."""
    has_decoder: bool = False
    """core/model/decoder.py computes these models, which keeps less of a layer."""


def _family(tied: bool = False, **given: Any) -> Family:
    """Returns a family whose default is to tie the head to the embedding, or not."""
    defaults = {"tie_word_embeddings": tied} | given.pop("defaults", {})
    return Family(defaults, **given)


HEADS = {"num_key_value_heads": None}
"""Keys and values have as many heads as queries, unless the file says otherwise."""
ALL_BIASES = ("attention_bias", "attention_bias", "mlp_bias")
ATTENTION_BIASES = ("attention_bias", "attention_bias", "")
STATES = {"linear_conv_kernel_dim": 4, "full_attention_interval": 4, "head_dim": 256}
STATES |= {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16}
STATES |= {"linear_num_value_heads": 32, "num_attention_heads": 16}
GATED_DELTA: dict[str, Any] = {"qk_norm": "head", "biases": ATTENTION_BIASES, "pattern": 4}
GATED_DELTA |= {"gated_queries": True, "between": LINEAR}
"""Three layers of gated delta nets, then one of attention with gated queries."""
GEMMA = {"head_dim": 256, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26}
GEMMA |= {"num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096}
MISTRAL = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
MISTRAL |= {"num_key_value_heads": 8}
SWITCHED = {"use_sliding_window": False}
SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": ()}

FAMILIES: Mapping[str, Family] = {
    "apertus": _family(
        qk_norm="head", biases=ATTENTION_BIASES, is_gated=False, others=2, defaults=HEADS
    ),
    "arcee": _family(biases=ALL_BIASES, is_gated=False, defaults=HEADS),
    "cohere": _family(
        tied=True,
        norms=1,
        qk_norm="all",
        qk_switch="use_qk_norm",
        biases=ATTENTION_BIASES,
        defaults=HEADS,
    ),
    "cohere2": _family(
        tied=True,
        norms=1,
        biases=ATTENTION_BIASES,
        pattern=4,
        defaults=HEADS | {"sliding_window": 4096},
    ),
    "deepseek_v3": _family(
        biases=ATTENTION_BIASES,
        expert_width="moe_intermediate_size",
        shared_width="n_shared_experts",
        adapts_experts=True,
        is_latent=True,
        defaults={"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3},
    ),
    "ernie4_5": _family(
        tied=True, biases=("use_bias", "use_bias", "use_bias"), defaults={"head_dim": 128}
    ),
    "exaone4": _family(qk_norm="head", pattern=4, defaults={"sliding_window": 4096}),
    "gemma": _family(tied=True, biases=ATTENTION_BIASES, defaults={"head_dim": 256}),
    "gemma2": _family(
        tied=True, norms=4, biases=ATTENTION_BIASES, pattern=2, has_tree=False, defaults=GEMMA
    ),
    "falcon_h1": _family(biases=ALL_BIASES, has_tree=False),
    "gemma3_text": _family(
        tied=True,
        norms=4,
        qk_norm="head",
        biases=ATTENTION_BIASES,
        pattern=6,
        defaults=GEMMA | {"vocab_size": 262208},
    ),
    "gemma4_text": _family(
        tied=True,
        norms=4,
        qk_norm="head",
        biases=ATTENTION_BIASES,
        pattern=6,
        expert_width="moe_intermediate_size",
        defaults=GEMMA
        | {"num_hidden_layers": 30, "sliding_window": 512, "vocab_size": 262144}
        | {"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256}
        | {"global_head_dim": 512},
    ),
    "glm": _family(
        biases=("attention_bias", "", ""),
        is_joined="mlp",
        defaults={"head_dim": 128, "attention_bias": True},
    ),
    "glm4": _family(
        norms=4,
        biases=("attention_bias", "", ""),
        is_joined="mlp",
        defaults={"head_dim": 128, "attention_bias": True},
    ),
    "glm4_moe": _family(
        qk_norm="head",
        qk_switch="use_qk_norm",
        biases=("attention_bias", "", ""),
        expert_width="moe_intermediate_size",
        shared_width="n_shared_experts",
        adapts_experts=True,
        defaults={"n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
    "gpt_oss": _family(
        biases=ATTENTION_BIASES,
        pattern=2,
        expert_width="intermediate_size",
        expert_biases=True,
        has_sinks=True,
        defaults={"attention_bias": True, "head_dim": 64, "sliding_window": 128},
    ),
    "granite": _family(biases=ALL_BIASES, defaults=HEADS),
    "granitemoe": _family(
        biases=ATTENTION_BIASES, expert_width="intermediate_size", defaults=HEADS
    ),
    "helium": _family(biases=("attention_bias", "", "mlp_bias"), defaults={"head_dim": 128}),
    "hunyuan_v1_dense": _family(qk_norm="head", biases=ATTENTION_BIASES, defaults=HEADS),
    "lfm2": _family(
        tied=True,
        qk_norm="head",
        between=CONV,
        defaults={"conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0}
        | {"block_auto_adjust_ff_dim": True},
    ),
    "lfm2_moe": _family(
        tied=True,
        qk_norm="head",
        between=CONV,
        expert_width="moe_intermediate_size",
        defaults={"conv_L_cache": 3, "num_dense_layers": 2},
    ),
    "lfm3": _family(
        tied=True,
        norms=4,
        norms_if=("use_sandwich_norm", False, 2),
        qk_norm="head",
        biases=ATTENTION_BIASES,
        between=CONV,
        head_gate="use_attention_gate",
        defaults={"head_dim": 128, "sliding_window": 256, "conv_L_cache": 7}
        | {"use_attention_gate": True, "use_sandwich_norm": True},
    ),
    "llama": _family(biases=ALL_BIASES, has_decoder=True, defaults=HEADS),
    "mamba2": _family(norms=1, has_tree=False),
    "minimax": _family(
        pattern=2,
        between=LINEAR,
        expert_width="intermediate_size",
        adapts_experts=True,
        states="lightning",
        has_tree=False,
        defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "ministral3": _family(pattern="window", defaults=MISTRAL | {"head_dim": 128}),
    "mistral": _family(pattern="window", defaults=MISTRAL | {"sliding_window": 4096}),
    "mixtral": _family(
        pattern="window",
        expert_width="intermediate_size",
        adapts_experts=True,
        defaults={"num_experts_per_tok": 2},
    ),
    "nanochat": _family(norms=0, last_norm=0, biases=ATTENTION_BIASES, is_gated=False),
    "nemotron": _family(
        norms=4,
        last_norm=2,
        biases=ALL_BIASES,
        is_gated=False,
        has_tree=False,
        defaults=HEADS,
    ),
    "olmo": _family(norms=0, last_norm=0, biases=ATTENTION_BIASES, defaults=HEADS),
    "olmo2": _family(qk_norm="all", biases=ATTENTION_BIASES, defaults=HEADS),
    "olmo3": _family(
        qk_norm="all",
        biases=ATTENTION_BIASES,
        pattern=4,
        defaults=HEADS | {"sliding_window": 4096},
    ),
    "olmo_hybrid": _family(
        qk_norm="all",
        biases=ATTENTION_BIASES,
        between=LINEAR,
        states="apart",
        defaults=HEADS | {"linear_conv_kernel_dim": 4},
    ),
    "olmoe": _family(
        qk_norm="all",
        biases=ATTENTION_BIASES,
        expert_width="intermediate_size",
        adapts_experts=True,
        defaults=HEADS,
    ),
    "phi": _family(
        last_norm=2,
        qk_norm="biased",
        qk_switch="qk_layernorm",
        biases=("yes", "yes", "yes"),
        is_gated=False,
        has_head_bias=True,
        defaults=HEADS,
    ),
    "phi3": _family(is_joined="all", pattern="window", defaults=HEADS),
    "qwen2": _family(biases=("yes", "", ""), has_decoder=True, defaults=SWITCHED),
    "qwen2_moe": _family(
        biases=("qkv_bias", "", ""),
        expert_width="moe_intermediate_size",
        shared_width="shared_expert_intermediate_size",
        defaults=SWITCHED | SPARSE | {"qkv_bias": True},
    ),
    "qwen3": _family(
        qk_norm="head",
        biases=ATTENTION_BIASES,
        has_decoder=True,
        defaults=SWITCHED | {"head_dim": 128},
    ),
    "qwen3_5_moe_text": _family(
        **GATED_DELTA,
        expert_width="moe_intermediate_size",
        shared_width="shared_expert_intermediate_size",
        states="split",
        defaults=STATES | {"num_key_value_heads": 2},
    ),
    "qwen3_5_text": _family(
        **GATED_DELTA, states="split", defaults=STATES | {"num_key_value_heads": 4}
    ),
    "qwen3_moe": _family(
        qk_norm="head",
        biases=ATTENTION_BIASES,
        pattern="window",
        expert_width="moe_intermediate_size",
        adapts_experts=True,
        defaults=SWITCHED | SPARSE,
    ),
    "qwen3_next": _family(
        **GATED_DELTA,
        expert_width="moe_intermediate_size",
        shared_width="shared_expert_intermediate_size",
        adapts_experts=True,
        states="joined",
        defaults=STATES | SPARSE | {"num_key_value_heads": 2},
    ),
    "seed_oss": _family(
        biases=("attention_bias", "attention_out_bias", "mlp_bias"),
        defaults={"head_dim": 128, "attention_bias": True},
    ),
    "smollm3": _family(tied=True, biases=ALL_BIASES, defaults=SWITCHED),
    "stablelm": _family(
        norms=4,
        norms_if=("use_parallel_residual", True, 2),
        last_norm=2,
        qk_norm="all",
        qk_switch="qk_layernorm",
        biases=("use_qkv_bias", "", ""),
        has_tree=False,
    ),
    "starcoder2": _family(
        tied=True,
        norms=4,
        last_norm=2,
        biases=("use_bias", "use_bias", "use_bias"),
        is_gated=False,
        pattern="window",
        defaults={"use_bias": True},
    ),
}
