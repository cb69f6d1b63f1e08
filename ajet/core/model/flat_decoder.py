"""The flat forward pass of a model: `Decoder` for Qwen2, Qwen3 and Llama (decoder.py, the fastest),
here `ModuleDecoder` for other families. Models without one are sampled and trained by transformers'
forward (hf_forward.py, padded.py).
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ajet.core.model.attention.trie import Forest
from ajet.core.model.branch_states import SegmentPlan, compute_by_segments, takes_states
from ajet.core.model.decoder import Attend, Decoder, recompute_layers, run_unsharded, unwrapped
from ajet.core.model.routes import NUM_EXPERTS_KEYS
from ajet.core.model.wide_layer import is_wide, linear

FAMILIES = frozenset(
    (
        *("apertus", "arcee", "cohere", "cohere2", "deepseek_v3", "ernie4_5", "exaone4", "gemma"),
        *("gemma3_text", "gemma4_text", "glm", "glm4", "gpt_oss", "granite", "granitemoe"),
        *("helium", "hunyuan_v1_dense", "lfm2", "lfm2_moe", "lfm3", "ministral3", "mistral"),
        *("mixtral", "nanochat", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "phi", "phi3"),
        *("qwen2_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe"),
        *("qwen3_next", "qwen3_vl_text", "glm4v_text", "seed_oss", "smollm3", "starcoder2"),
    )
)
"""The model types whose numbers a test compares with those of transformers' own attention."""

LAYERS_WITH_STATES = {"linear_attention": "linear_attn", "conv": "conv"}
"""The types of layers with a state, and the name of the module that has it."""
LAYER_TYPES = {"full_attention", "sliding_attention", *LAYERS_WITH_STATES}
REGISTERED = {"sdpa": "ajet_sdpa", "eager": "ajet_eager"}
"""The names in transformers' registries, by the attention that computes calls without `attend`."""


class FlatDecoder(Protocol):
    """Computes a causal language model over a flat list of tokens."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def launches_the_same(self) -> bool:
        """Whether passes over the same number of tokens always launch the same operators."""
        ...

    @property
    def longest_plain(self) -> float:
        """The longest sequence over which every layer is plain causal attention, by keys of one
        width; a call over longer ones needs the forest."""
        ...

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: Forest | None = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised."""
        ...

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns the next-token logits ``[N, vocab]`` in the model's dtype."""
        ...

    def head_weight(self) -> Tensor | None:
        """Returns the weight ``[vocab, hidden]`` if `logits` is the product with it."""
        ...


def has_flat_decoder(model: nn.Module) -> bool:
    return Decoder.supports(model) or ModuleDecoder.supports(model)


def flat_decoder(model: nn.Module, recompute: bool = False) -> FlatDecoder:
    """Makes the flat forward of a model that has one; `recompute` is as in `Decoder`."""
    decoder_class = Decoder if Decoder.supports(model) else ModuleDecoder
    return decoder_class(model, recompute)


class ModuleDecoder:
    """Computes a causal language model over a flat list of tokens, by its own modules.

    Attention is the caller's here too. A model of transformers looks its attention function up in a
    registry; the one registered here passes queries, keys and values to the `attend` with which the
    model was called, and without one computes as transformers does.

        attend(layer, q, k, v)                   a token sees all before it
        attend(layer, q, k, v, window=, sinks=)  in layers with a sliding window, or with attention
                                                 sinks (scores that take a part of each softmax)"""

    def __init__(self, model: nn.Module, recompute: bool = False) -> None:
        base = unwrapped(model)
        config = base.config
        if not self.supports(model):
            raise ValueError(f"no flat forward for model type {config.model_type!r}")
        implementation = config._attn_implementation
        config._attn_implementation = REGISTERED.get(implementation, implementation)
        layers = _layers_with_states(base.base_model)
        for layer in layers:
            compute_by_segments(layer)
        self._has_states = bool(layers)
        self._has_sinks = any(name.endswith(".sinks") for name, _ in base.named_parameters())
        # With adapters most weights are not trained, and wide_layer.py would save little.
        if base is model:
            for module in base.modules():
                if type(module) is nn.Linear and "forward" not in module.__dict__:
                    module.forward = partial(_linear, module)
        if recompute:
            recompute_layers(base)
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = (
            getattr(first_layer_config(config), "num_key_value_heads", None) or self.num_heads
        )
        self.head_dim: int = head_dim(config)
        self._model, self._config = model, config
        self._base: nn.Module = base.base_model
        self._head: nn.Module = base.lm_head

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Tells whether this forward gives the same numbers as the model's own (compared by a
        test)."""
        base = unwrapped(model)
        config = base.config
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            config.model_type in FAMILIES
            and hasattr(base, "lm_head")
            and config._attn_implementation in (*REGISTERED, *REGISTERED.values())
            and set(getattr(config, "layer_types", None) or ()) <= LAYER_TYPES
            # Not rotary tables that depend on the longest sequence in the batch.
            and rope.get("rope_type", "default") not in ("dynamic", "longrope")
            and all(map(takes_states, _layers_with_states(base.base_model)))
        )

    @property
    def longest_plain(self) -> float:
        config = self._config
        kinds = set(getattr(config, "layer_types", None) or ())
        layers_differ = first_layer_config(config) is not config
        if self._has_states or self._has_sinks or layers_differ:
            return 0
        window = getattr(config, "sliding_window", None)
        return window if window and kinds != {"full_attention"} else math.inf

    @property
    def launches_the_same(self) -> bool:
        # Experts compute as many tokens as the router sends them.
        return not any(getattr(self._config, name, None) for name in NUM_EXPERTS_KEYS)

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: Forest | None = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised. Without a `forest`,
        no sequence may be longer than `longest_plain`, and `attend` gets no window."""
        options: dict[str, Any] = {"attend": attend if forest is not None else _plain(attend)}
        if self._has_states:
            assert forest is not None, "layers with a state need the forest"
            options["segments"] = SegmentPlan(forest, token_ids_N.device)
        return run_unsharded(self._model, self._hidden, token_ids_N, positions_N, options)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns the next-token logits ``[N, vocab]`` in the model's dtype."""
        logits, config = self._head(hidden_ND), self._config
        if factor := getattr(config, "logit_scale", None):
            logits = logits * factor
        if divisor := getattr(config, "logits_scaling", None):
            logits = logits / divisor
        if cap := getattr(config, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        return logits

    def head_weight(self) -> Tensor | None:
        """Returns the weight ``[vocab, hidden]`` if `logits` is the product with it."""
        head, config = self._head, self._config
        changes = ("logit_scale", "logits_scaling", "final_logit_softcapping")
        is_plain = not any(getattr(config, name, None) for name in changes)
        if is_plain and type(head) is nn.Linear and head.bias is None:
            return head.weight
        return None

    def _hidden(self, token_ids_N: Tensor, positions_N: Tensor, options: dict[str, Any]) -> Tensor:
        out = self._base(
            input_ids=token_ids_N.unsqueeze(0),
            position_ids=positions_N.unsqueeze(-2),  # [1, N], or [3, 1, N] with three axes
            # transformers uses a mask of four dimensions unchanged and makes none; `attend` does
            # not look at it.
            attention_mask=token_ids_N.new_empty(1, 1, 1, 1),
            use_cache=False,
            **options,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden[0]


def head_dim(config: Any) -> int:
    """Returns the width of queries and keys, in the first layer where layers differ."""
    config = first_layer_config(config)
    if getattr(config, "kv_lora_rank", None):
        return config.qk_nope_head_dim + config.qk_rope_head_dim
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def first_layer_config(config: Any) -> Any:
    """Returns the config of the first layer where each layer has one, or the config."""
    return config.per_layer_config[0] if getattr(config, "is_heterogeneous", False) else config


def _layers_with_states(base: Any) -> list[nn.Module]:
    """Returns the modules that carry a state along a sequence."""
    kinds = getattr(base.config, "layer_types", None) or ()
    return [
        getattr(layer, LAYERS_WITH_STATES[layer_type])
        for layer, layer_type in zip(base.layers, kinds, strict=False)
        if layer_type in LAYERS_WITH_STATES
    ]


def _linear(module: nn.Linear, input: Tensor) -> Tensor:
    """Computes a linear layer, by wide_layer.py where it is wide."""
    rows = input.flatten(0, -2)
    if is_wide(rows, module):
        return linear(rows, module).unflatten(0, input.shape[:-1])
    return F.linear(input, module.weight, module.bias)


def _plain(attend: Attend) -> Attend:
    """Drops windows, which hide nothing from short sequences."""
    return lambda layer, q, k, v, **_: attend(layer, q, k, v)


def _attention(default: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function for transformers' registry: it calls the `attend` with which the model
    was called, or `default`."""

    def attention(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        attend: Callable[..., Tensor] | None = None,
        segments: object = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the attention ``[1, N, heads, d]`` of a layer over ``[1, heads, N, d]``."""
        if attend is None:
            arguments = {"sliding_window": sliding_window, "s_aux": s_aux, "scaling": scaling}
            return default(module, query, key, value, attention_mask, **arguments, **options)
        q, k, v = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))
        # `attend` scales by d ** -0.5; another scale of the model goes into the queries.
        plain = q.shape[2] ** -0.5
        if scaling is not None and scaling != plain:
            q = q * (scaling / plain)
        # Kernels need one width: narrower values (latent attention) are padded with 0, then cut.
        narrow = v.shape[2]
        if narrow < q.shape[2]:
            v = F.pad(v, (0, q.shape[2] - narrow))
        special = {"window": sliding_window, "sinks": s_aux}
        special = {name: value for name, value in special.items() if value is not None}
        out = attend(module.layer_idx, q, k, v, **special)
        return out[..., :narrow].unsqueeze(0), None

    return attention


def _eager(module: Any, *args: Any, **options: Any) -> Any:
    """Computes by the eager attention function in the file of the model."""
    return sys.modules[type(module).__module__].eager_attention_forward(module, *args, **options)


AttentionInterface.register(REGISTERED["sdpa"], _attention(sdpa_attention_forward))
AttentionMaskInterface.register(REGISTERED["sdpa"], sdpa_mask)
AttentionInterface.register(REGISTERED["eager"], _attention(_eager))
AttentionMaskInterface.register(REGISTERED["eager"], eager_mask)
