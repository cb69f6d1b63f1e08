"""Model families of transformers that users bring, as tiny models with random weights."""

import torch
from transformers import AutoConfig

from ajet.core.model.multimodal import causal_model

VOCAB = 64
IDS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
SMALL = IDS | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
}
AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
"""Rotary positions of time, height and width, for heads of 8."""
WIDE_HEADS = SMALL | {"head_dim": 12}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
FOUR_EXPERTS = EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 24}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
WINDOW = 16
"""The sliding window, which the sequences of the tests are longer than."""

FIRST = {
    "llama": SMALL,
    "qwen2": SMALL,
    "qwen2_5_vl_text": SMALL | {"rope_parameters": AXES},
    "qwen3": WIDE_HEADS,
}
"""The families that `Decoder` is written for."""

FULL_ATTENTION = {
    "apertus": SMALL,
    "arcee": SMALL,
    "cohere": SMALL,
    "deepseek_v3": SMALL
    | {
        "num_key_value_heads": 4,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "first_k_dense_replace": 1,
    }
    | EXPERTS,
    "ernie4_5": SMALL,
    "gemma": WIDE_HEADS,
    "glm": SMALL | {"head_dim": 8},
    "glm4": SMALL | {"head_dim": 8},
    "glm4v_text": SMALL | {"rope_parameters": AXES | {"partial_rotary_factor": 1.0}},
    "granite": SMALL | {"attention_multiplier": 0.5, "residual_multiplier": 0.7},
    "granitemoe": SMALL | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "helium": SMALL | {"head_dim": 8},
    "hunyuan_v1_dense": WIDE_HEADS,
    "ministral3": WIDE_HEADS,
    "mistral": SMALL | {"sliding_window": None},
    "mixtral": SMALL | {"num_local_experts": 4},
    "nanochat": SMALL,
    "olmo": SMALL,
    "olmo2": SMALL,
    "olmoe": SMALL | {"num_experts": 4, "num_experts_per_tok": 2},
    "phi": SMALL,
    "phi3": SMALL,
    "qwen2_moe": SMALL | FOUR_EXPERTS,
    "qwen3_moe": WIDE_HEADS | EXPERTS | {"num_experts": 4},
    "qwen3_vl_text": SMALL | {"head_dim": 8, "rope_parameters": AXES},
    "seed_oss": WIDE_HEADS,
    "smollm3": SMALL,
    "starcoder2": SMALL | {"sliding_window": None},
}
"""Families where a token sees all tokens before it, by keys of one width in all layers."""

WITH_STATES = {
    "lfm2": SMALL | {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": SMALL
    | FOUR_EXPERTS
    | {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "lfm3": SMALL,
    "olmo_hybrid": SMALL | LINEAR,
    "qwen3_5_moe_text": WIDE_HEADS | LINEAR | FOUR_EXPERTS,
    "qwen3_5_text": WIDE_HEADS | LINEAR,
    "qwen3_next": WIDE_HEADS | LINEAR | FOUR_EXPERTS,
}
"""Families with layers of linear attention or short convolutions, and others of full attention."""

OTHER_ATTENTION = {
    "cohere2": SMALL | {"sliding_window": WINDOW},
    "exaone4": SMALL | {"sliding_window": WINDOW},
    "gemma3_text": WIDE_HEADS
    | {
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gemma4_text": WIDE_HEADS
    | {
        "sliding_window": WINDOW,
        "global_head_dim": 16,
        "vocab_size_per_layer_input": VOCAB,
        "hidden_size_per_layer_input": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "gpt_oss": WIDE_HEADS
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    "olmo3": SMALL | {"sliding_window": WINDOW},
}
"""Families with sliding windows, attention sinks, or layers that differ."""

OTHERS = {
    "falcon_h1": SMALL
    | {
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 16,
    },
    "gemma2": WIDE_HEADS | {"sliding_window": WINDOW, "query_pre_attn_scalar": 8},
    "mamba2": IDS
    | {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "state_size": 8,
        "num_heads": 8,
        "head_dim": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "minimax": SMALL,
    "nemotron": SMALL,
    "stablelm": SMALL,
}
"""Families that have no flat forward."""


ALL = FULL_ATTENTION | OTHER_ATTENTION | WITH_STATES | OTHERS


def family_model(name, **changes):
    """Returns a tiny model of a family, in float32, the same at each call."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **(FIRST | ALL)[name] | changes)
    return causal_model(config, torch.float32).eval()
