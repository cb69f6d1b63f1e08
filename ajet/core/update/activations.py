"""What a forward pass keeps for the backward pass; imports no torch, for `ajet plan`.

On a GPU `activation_checkpointing: auto` decides for each pass by the free memory. Both ways give
the same bits, so other users of the GPU change only the time.
"""

KEPT_SHARE = 0.5
"""A pass keeps its activations if they take at most this share of the free memory: gradients,
moments and the logits of a slice of tokens may not be allocated yet."""


def kept_values(hidden: int, attention_width: int, kv_width: int, intermediate: int) -> int:
    """Returns the number of values that one layer with a gated MLP keeps for one token.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), for grouped queries and attention
    that keeps no score matrix: two norms' inputs and outputs (4 h), queries and attention's output
    (2 q), keys and values (2 kv), gate, up, their product and the activation (4 m)."""
    return 4 * hidden + 2 * attention_width + 2 * kv_width + 4 * intermediate


def is_kept(num_bytes: float, free_bytes: float) -> bool:
    """Tells whether a pass keeps these activations; if not, it keeps only each layer's input."""
    return num_bytes <= KEPT_SHARE * free_bytes
