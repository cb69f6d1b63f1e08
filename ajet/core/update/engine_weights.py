"""The policy's weights for an engine: whole, with the model's own names, in a fixed order.

    model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, …

Adapters are merged into the weights that they adapt, because the engine has none. Tied weights come
once. With several ranks, every rank iterates to the end, because all gather each tensor.

Not covered: their transport (core/weight_sync).
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ajet.core.update.shards import full_tensor

BASE_WEIGHT = ".base_layer.weight"


@torch.no_grad()
def engine_weights(model: nn.Module, dtype: torch.dtype | None) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights in `dtype`, or each in its own; copies only where it must."""
    untyped: Any = model
    base = untyped.get_base_model() if hasattr(model, "get_base_model") else untyped
    modules: dict[str, Any] = dict(base.named_modules())
    for name, weight in base.named_parameters():
        if "lora_" in name:
            continue
        own = weight.detach()
        if name.endswith(BASE_WEIGHT):
            whole = full_tensor(own)
            adapted = modules[name.removesuffix(BASE_WEIGHT)]
            for adapter in adapted.active_adapters:
                whole = whole + full_tensor(adapted.get_delta_weight(adapter)).to(whole.dtype)
            whole = whole.to(dtype or whole.dtype)
        else:  # a shard is cast before it travels, which halves what the ranks send
            whole = full_tensor(own.to(dtype or own.dtype))
        yield name.replace(".base_layer.", "."), whole
