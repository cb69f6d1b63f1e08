"""What a forward pass keeps for the backward pass, counted without torch, as for `ajet plan`.

    is_kept(num_bytes, free_bytes)    whether a pass keeps it all, or each layer is computed again

On a GPU `activation_checkpointing: auto` decides for each pass by the memory that is free. Both
ways give the same bits, so what else is on the GPU changes the time alone.
"""

KEPT_SHARE = 0.5
"""A pass keeps its activations if they take no more than this share of the free memory: gradients,
moments and the logits of a slice of tokens may still be to come."""


def kept_values(hidden: int, attention_width: int, kv_width: int, intermediate: int) -> int:
    """Returns the values that one layer with a gated MLP keeps of one token.

    After Korthikanti et al. 2022 (arXiv 2205.05198, section 4), for grouped queries and attention
    that keeps no score matrix: two norms' inputs and outputs (4 h), queries and attention's output
    (2 q), keys and values (2 kv), gate, up, their product and the activation (4 m).
    """
    return 4 * hidden + 2 * attention_width + 2 * kv_width + 4 * intermediate


def is_kept(num_bytes: float, free_bytes: float) -> bool:
    """Tells whether a pass that would keep so many bytes does; else it keeps each layer's input."""
    return num_bytes <= KEPT_SHARE * free_bytes
