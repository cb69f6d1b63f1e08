"""A flat forward pass for the common decoder family (Qwen2, Qwen3, Llama, Qwen2.5-VL). Tokens are a
list ``[N]``, not a padded rectangle, and attention is the caller's: the engine passes one that
reads a KV cache, the update one that walks a tree. Everything else is computed once per distinct
token with the model's own modules, so weights are shared and LoRA layers work.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ajet.core.model.precision import rms_norm
from ajet.core.model.wide_layer import gated_mlp, is_wide, linear, linears_of_norm, rotate, rotated

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``(layer, q [N, heads, d], k [N, kv_heads, d], v [N, kv_heads, d]) -> [N, heads, d]``; softmax
scale ``d ** -0.5``; query head h reads key head ``h // (heads // kv_heads)``."""

FAMILIES = frozenset(("qwen2", "qwen2_5_vl_text", "qwen3", "llama"))


class Decoder:
    """Computes a causal language model over a flat list of tokens:

    hidden_ND = decoder(token_ids_N, positions_N, attend)
    logits_MV = decoder.logits(hidden_ND[rows])"""

    launches_the_same = True
    longest_plain = math.inf

    def __init__(self, model: nn.Module, recompute: bool = False) -> None:
        """With `recompute`, which may change between passes, only the input of each layer is kept,
        and the backward pass computes the layer again."""
        base = unwrapped(model)
        config = base.config
        if not self.supports(model):
            raise ValueError(f"no flat forward for model type {config.model_type!r}")
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = config.num_key_value_heads
        self.head_dim: int = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        self._model = model
        self.recompute = recompute
        self._embed = base.model.embed_tokens
        self._rotary = base.model.rotary_emb
        self._layers = list(base.model.layers)
        self._norm = base.model.norm
        self._head: nn.Module = base.lm_head
        self._has_plain_mlp = not getattr(config, "mlp_bias", False)

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Tells whether this forward gives the same numbers as the model's own (compared by a
        test)."""
        base = unwrapped(model)
        config = base.config
        if config.model_type not in FAMILIES or not hasattr(base, "lm_head"):
            return False
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.hidden_act == "silu"
            and not getattr(config, "use_sliding_window", False)
            # Not rotary tables that depend on the longest sequence, or cover a part of a head.
            and rope.get("rope_type", "default") not in ("dynamic", "longrope")
            and rope.get("partial_rotary_factor", 1.0) == 1.0
        )

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: object = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised. Only other decoders
        use the `forest`."""
        return run_unsharded(self._model, self._hidden, token_ids_N, positions_N, attend)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns the next-token logits ``[N, vocab]`` in the model's dtype."""
        if is_wide(hidden_ND, self._head):
            return linear(hidden_ND, self._head)
        return self._head(hidden_ND)

    def head_weight(self) -> Tensor | None:
        """Returns the weight ``[vocab, hidden]`` if `logits` is the product with it."""
        head: Any = self._head
        return head.weight if type(head) is nn.Linear and head.bias is None else None

    def _hidden(self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        x = self._embed(token_ids_N)
        # [1, N], or [3, 1, N] with three axes
        cos, sin = self._rotary(x.unsqueeze(0), positions_N.unsqueeze(-2))
        # [N, 1, d] broadcasts over heads. The sign of the first half is in `sin`, so that `rotate`
        # is one product and one fused multiply-add.
        first_half, second_half = sin[0].unsqueeze(1).chunk(2, dim=-1)
        cos, sin = cos[0].unsqueeze(1), torch.cat((-first_half, second_half), dim=-1)
        compute = partial(recomputed, self._layer) if self.recompute else self._layer
        for index, layer in enumerate(self._layers):
            x = run_unsharded(layer, compute, index, x, cos, sin, attend)
        return rms_norm(self._norm, x)

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layer = self._layers[index]
        q, k, v = self._project(layer, x, cos, sin)
        out = attend(index, q, k, v).reshape(x.shape[0], -1)
        # wide_layer.py computes plain linear layers of wide models, others (small ones, LoRA) by
        # their own modules.
        o_proj, norm, mlp = layer.self_attn.o_proj, layer.post_attention_layernorm, layer.mlp
        x = x + (linear(out, o_proj) if is_wide(x, o_proj) else o_proj(out))
        if self._has_plain_mlp and is_wide(x, mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            return gated_mlp(x, norm, mlp)
        h = rms_norm(norm, x)
        return x + mlp.down_proj(F.silu(mlp.gate_proj(h)) * mlp.up_proj(h))

    def _project(
        self, layer: Any, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        attn, norm = layer.self_attn, layer.input_layernorm
        linears = (attn.q_proj, attn.k_proj, attn.v_proj)
        if is_wide(x, *linears):
            q, k, v = linears_of_norm(x, norm, *linears)
        else:
            h = rms_norm(norm, x)
            q, k, v = (linear_layer(h) for linear_layer in linears)
        q, k, v = (t.unflatten(1, (-1, self.head_dim)) for t in (q, k, v))
        if hasattr(attn, "q_norm"):
            q, k = rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k)
        if is_wide(x, *linears):
            q, k = (rotated(t, cos, sin) for t in (q, k))
        else:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q, k, v


def run_unsharded(module: nn.Module, compute: Callable[..., Tensor], *args: Any) -> Tensor:
    """Computes ``compute(*args)`` while `module`'s weights are whole: a sharded module has a method
    `run_unsharded` (core/ranks/sharding.py), which gathers them as its forward would."""
    sharded_run = module.__dict__.get("run_unsharded")
    return compute(*args) if sharded_run is None else sharded_run(compute, *args)


def is_sharded(model: nn.Module) -> bool:
    """Tells whether weights of the model are gathered for each call."""
    return any("run_unsharded" in module.__dict__ for module in model.modules())


def recomputed(compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns ``compute(*args)`` and keeps only its arguments: the backward pass computes it again,
    with the same kernels. No random state is kept, because there is no dropout."""
    return checkpoint(compute, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the repeated blocks, which transformers names in `_no_split_modules`."""
    names: set[str] = set()
    for module in model.modules():
        names |= set(getattr(module, "_no_split_modules", None) or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def recompute_layers(model: nn.Module) -> None:
    """Makes the backward pass compute each of the model's layers again."""
    for layer in decoder_layers(model):
        layer.forward = partial(recomputed, layer.forward)


def unwrapped(model: Any) -> Any:
    """Returns the causal model inside a peft wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model
