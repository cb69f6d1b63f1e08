"""A flat forward pass by transformers' own modules, for families beside those of `Decoder`.

Attention is the caller's here too (decoder.py says what for). A model of transformers looks its
attention function up in a registry; the one that is registered here hands queries, keys and values
to the `attend` that the call of the model was given, and without one computes as transformers does.
All else is the model's own code: norms, rotary positions, experts, multipliers.

Layers that carry a state along a sequence (linear attention, short convolutions) are computed from
the forest of the tokens (branch_states.py).

Not covered: sliding windows, scores that are capped or have sinks, keys and values of different
widths, families that no test has compared (`FAMILIES`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ajet.core.model.attention.trie import Forest
from ajet.core.model.branch_states import SegmentPlan, compute_by_segments
from ajet.core.model.decoder import Attend, recompute_layers, run_unsharded, unwrapped

FAMILIES = frozenset(
    (
        *("apertus", "arcee", "cohere", "ernie4_5", "gemma", "glm", "glm4", "granite"),
        *("granitemoe", "helium", "hunyuan_v1_dense", "ministral3", "mistral", "mixtral"),
        *("nanochat", "olmo", "olmo2", "olmoe", "phi", "phi3", "qwen2_moe", "qwen3_moe"),
        *("seed_oss", "smollm3", "starcoder2"),
    )
)
FAMILIES_WITH_STATES = frozenset(
    (
        *("lfm2", "lfm2_moe", "lfm3", "olmo_hybrid"),
        *("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"),
    )
)
"""The model types whose numbers a test compares with those of transformers' own attention."""

LAYERS_WITH_STATES = {"linear_attention": "linear_attn", "conv": "conv"}
"""The types of layers with a state, and the module of each that has it."""
GIVEN = "ajet"
"""The attention's name in transformers' registries."""


class ModuleDecoder:
    """Computes a causal language model over a flat list of tokens, by its own modules."""

    def __init__(self, model: nn.Module, recompute: bool = False) -> None:
        """`recompute` has a backward pass compute each layer again, of which only the input is
        kept."""
        base = unwrapped(model)
        config = base.config
        if not self.supports(model):
            raise ValueError(f"no flat forward for model type {config.model_type!r}")
        config._attn_implementation = GIVEN
        self.has_states: bool = config.model_type in FAMILIES_WITH_STATES
        if self.has_states:
            _compute_states_by_segments(base.base_model, config.layer_types)
        if recompute:
            recompute_layers(base)
        self.num_layers: int = config.num_hidden_layers
        self.num_heads: int = config.num_attention_heads
        self.num_kv_heads: int = getattr(config, "num_key_value_heads", None) or self.num_heads
        self.head_dim: int = (
            getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        )
        self._model, self._config = model, config
        self._base: nn.Module = base.base_model
        self._head: nn.Module = base.lm_head

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Tells whether this forward gives the same numbers as the model's own. A test compares
        the two."""
        base = unwrapped(model)
        config = base.config
        rope = getattr(config, "rope_parameters", None) or {}
        layer_types = set(getattr(config, "layer_types", None) or ())
        return (
            config.model_type in FAMILIES | FAMILIES_WITH_STATES
            and hasattr(base, "lm_head")
            and config._attn_implementation in ("sdpa", GIVEN)
            and layer_types <= {"full_attention", *LAYERS_WITH_STATES}
            and not (getattr(config, "sliding_window", None) and not layer_types)
            # Rotary tables that change with the longest sequence in the batch.
            and rope.get("rope_type", "default") not in ("dynamic", "longrope")
        )

    @property
    def launches_the_same(self) -> bool:
        """Is true if a pass over as many tokens always launches the same operators: experts get as
        many tokens as are sent to them."""
        return not any(
            getattr(self._config, name, None)
            for name in ("num_experts", "num_local_experts", "n_routed_experts")
        )

    def __call__(
        self,
        token_ids_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        forest: Forest | None = None,
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised. With `has_states`
        the `forest` of the tokens must be given."""
        segments = None
        if self.has_states:
            assert forest is not None, "layers with a state need the forest"
            segments = SegmentPlan(forest, token_ids_N.device)
        return run_unsharded(self._model, self._hidden, token_ids_N, positions_N, attend, segments)

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

    def _hidden(
        self,
        token_ids_N: Tensor,
        positions_N: Tensor,
        attend: Attend,
        segments: SegmentPlan | None,
    ) -> Tensor:
        out = self._base(
            input_ids=token_ids_N.unsqueeze(0),
            position_ids=positions_N.unsqueeze(0),
            # A mask of four dimensions is taken as it is: transformers makes none of its own.
            attention_mask=token_ids_N.new_empty(1, 1, 1, 1),
            use_cache=False,
            attend=attend,
            **({} if segments is None else {"segments": segments}),
        )
        hidden: Tensor = out.last_hidden_state
        return hidden[0]


def _compute_states_by_segments(base: Any, layer_types: list[str]) -> None:
    """Has the layers with a state compute trees, if they do not yet."""
    for layer, kind in zip(base.layers, layer_types, strict=True):
        if kind in LAYERS_WITH_STATES:
            compute_by_segments(getattr(layer, LAYERS_WITH_STATES[kind]))


def _attend_as_given(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    attend: Attend | None = None,
    segments: object = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention ``[1, N, heads, d]`` of a layer over ``[1, heads, N, d]``, by `attend` if it is
    given."""
    if attend is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **options
        )
    q, k, v = (t[0].transpose(0, 1).contiguous() for t in (query, key, value))
    plain = q.shape[2] ** -0.5
    if scaling is not None and scaling != plain:
        q = q * (scaling / plain)
    return attend(module.layer_idx, q, k, v).unsqueeze(0), None


AttentionInterface.register(GIVEN, _attend_as_given)
AttentionMaskInterface.register(GIVEN, sdpa_mask)
