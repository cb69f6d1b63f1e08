"""Shapes of dense models."""

from ajet.cluster.family_shapes import shape_of

NAMES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
         "head_dim", "intermediate_size", "vocab_size")  # fmt: skip


def dense(*sizes, tied, qkv_bias=False):
    """Returns the shape of a model of Qwen2 with biases, of Llama without."""
    family = {"model_type": "qwen2" if qkv_bias else "llama", "tie_word_embeddings": tied}
    return shape_of(family | dict(zip(NAMES, sizes, strict=True)), "by hand")
