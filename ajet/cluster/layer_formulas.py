"""The formulas of a decoder's layers, from the fields of its config.json and its family.

    hidden_size, num_attention_heads, …, a row of model_families.py   ->   a Layer each

Not covered: families whose layers are made otherwise (gemma4_shape.py, mamba_shape.py).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ajet.cluster.layer_shape import Experts, Layer, ModelShape
from ajet.cluster.model_families import CONV, FULL, LINEAR, SLIDING, Family

EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


class LayerFormulas:
    """Reads the fields of a config.json, and makes the layers.

    A family whose layers are made otherwise has a class of its own, which replaces methods.
    """

    def __init__(self, family: Family, content: Mapping[str, Any]) -> None:
        self.family = family
        self.fields = dict(family.defaults) | dict(content)
        self.hidden = self.number("hidden_size")
        self.heads = self.number("num_attention_heads")
        kv_heads = self.fields["num_key_value_heads"]
        self.kv_heads = self.heads if kv_heads is None else int(kv_heads)
        self.head_dim = self.number_or(self.hidden // self.heads, "head_dim")
        if family.is_latent:
            self.kv_heads = self.heads
            self.head_dim = self.number("qk_nope_head_dim") + self.number("qk_rope_head_dim")

    def shape(self) -> ModelShape:
        vocab, family = self.number("vocab_size"), self.family
        tied = self.fields.get("tie_embedding", self.fields["tie_word_embeddings"])
        return ModelShape(
            hidden=self.hidden,
            vocab=vocab,
            tied=bool(tied),
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            each_layer=tuple(self.layer(*each) for each in enumerate(self.layer_types())),
            others=family.last_norm * self.hidden + family.has_head_bias * vocab,
            has_tree=family.has_tree,
            has_decoder=family.has_decoder,
        )

    def layer_types(self) -> list[str]:
        """Returns the type of each layer: as the file says, or by the family's pattern."""
        num, family = self.number("num_hidden_layers"), self.family
        if (kinds := self.fields.get("layer_types")) is not None:
            if len(kinds) != num:
                raise ValueError(f"it has {len(kinds)} layer_types for {num} layers")
            return list(kinds)
        if (indices := self.fields.get("full_attn_idxs")) is not None:
            return [FULL if index in indices else family.between for index in range(num)]
        if family.pattern == "window":
            return [SLIDING] * num
        if family.pattern:
            every = self.number_or(0, "full_attention_interval")
            every = every or self.number_or(family.pattern, "sliding_window_pattern")
            return [family.between if (index + 1) % every else FULL for index in range(num)]
        if family.between != SLIDING or self.fields.get("use_sliding_window"):
            raise KeyError("layer_types")
        return [FULL] * num

    def layer(self, index: int, kind: str) -> Layer:
        """Returns the layer with its norms: what mixes tokens, and its MLP or experts."""
        if kind in (FULL, SLIDING):
            latent = self.family.is_latent
            mixer = self._latent_attention() if latent else self.attention(index, kind)
        elif kind == LINEAR and self.family.states:
            mixer = self._linear_attention()
        elif kind == CONV and self.family.between == CONV:
            mixer = self._convolution()
        else:
            raise ValueError(f"layers of type {kind!r} are not known here")
        adapted = sum(map(sum, mixer.linears))
        others = mixer.others + self.norms() * self.hidden
        return self.with_mlp(replace(mixer, adapted=adapted, others=others), index)

    def norms(self) -> int:
        """Returns the vectors of a layer's norms."""
        if self.family.norms_if is not None:
            switch, given, norms = self.family.norms_if
            if bool(self.fields.get(switch)) == given:
                return norms
        return self.family.norms

    def attention(self, index: int, kind: str) -> Layer:
        family, hidden = self.family, self.hidden
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        gate = q if family.gated_queries else 0
        linears = [(hidden, q + gate), (hidden, kv), (hidden, kv), (q, hidden)]
        if family.is_joined == "all":
            linears = [(hidden, q + 2 * kv), (q, hidden)]
        if family.head_gate and self.fields[family.head_gate]:
            linears.append((hidden, self.heads))
        of_qkv, of_output, _ = map(self.has_biases, family.biases)
        norms = {"": 0, "head": 2 * self.head_dim, "biased": 4 * self.head_dim, "all": q + kv}
        has_norms = not family.qk_switch or self.fields.get(family.qk_switch)
        others = of_qkv * (q + gate + 2 * kv) + of_output * hidden
        others += family.has_sinks * self.heads
        others += norms[family.qk_norm] if has_norms else 0
        return Layer(
            linears=tuple(linears),
            others=others,
            mixed=2 * q + gate + 2 * kv,
            kv=2 * kv,
            pair=2 * q,
            window=self.window(kind),
        )

    def window(self, kind: str) -> int | None:
        """Returns the window of a layer; a switch says in some families whether there is one."""
        is_on = (
            "use_sliding_window" not in self.family.defaults or self.fields["use_sliding_window"]
        )
        if (self.family.pattern != "window" and kind != SLIDING) or not is_on:
            return None
        return self.number_or(0, "sliding_window") or None

    def _latent_attention(self) -> Layer:
        """Returns attention whose keys and values are products of a latent and of one rotated key
        that all heads have."""
        hidden, heads = self.hidden, self.heads
        rotated, latent = self.number("qk_rope_head_dim"), self.number("kv_lora_rank")
        value_dim = self.number("v_head_dim")
        q, out = heads * self.head_dim, heads * value_dim
        kept = latent + rotated
        made = heads * (self.number("qk_nope_head_dim") + value_dim)
        linears = [(hidden, kept), (latent, made), (out, hidden)]
        rank = self.fields["q_lora_rank"]
        linears += [(hidden, q)] if rank is None else [(hidden, rank), (rank, q)]
        others = (rank or 0) + latent
        if self.fields.get("attention_bias"):
            others += (rank or 0) + kept + hidden
        return Layer(
            linears=tuple(linears),
            others=others,
            mixed=2 * q + 2 * out + kept + (rank or 0),
            kv=2 * q,  # the engine pads values to the width of keys
            latent=kept,
            pair=q + out,
        )

    def _linear_attention(self) -> Layer:
        """Returns a gated delta net: short convolutions, and a state for each head."""
        if self.family.states == "lightning":
            return self._lightning_attention()
        hidden, heads = self.hidden, self.number("linear_num_value_heads")
        key_dim = self.number("linear_key_head_dim")
        value_dim = self.number("linear_value_head_dim")
        keys, values = self.number("linear_num_key_heads") * key_dim, heads * value_dim
        kernel = self.number("linear_conv_kernel_dim")
        convolved = 2 * keys + values
        made = {
            "joined": (convolved + values, 2 * heads),
            "split": (convolved, values, heads, heads),
            "apart": (keys, keys, values, values, heads, heads),
        }[self.family.states]
        return Layer(
            linears=(*((hidden, width) for width in made), (values, hidden)),
            others=convolved * kernel + 2 * heads + value_dim,
            mixed=2 * convolved + 2 * values,
            state=convolved * kernel,
            wide_state=heads * key_dim * value_dim,
        )

    def _lightning_attention(self) -> Layer:
        """Returns attention without a softmax: a state for each head, and a gate of the output."""
        q = self.heads * self.head_dim
        return Layer(
            linears=((self.hidden, 3 * q), (self.hidden, q), (q, self.hidden)),
            others=q,
            mixed=6 * q,
            state=q * self.head_dim,
        )

    def _convolution(self) -> Layer:
        """Returns a short convolution between two gates."""
        hidden, kernel = self.hidden, self.number("conv_L_cache")
        biases = 5 * hidden if self.fields.get("conv_bias") else 0
        return Layer(
            linears=((hidden, 3 * hidden), (hidden, hidden)),
            others=hidden * kernel + biases,
            mixed=6 * hidden,
            state=hidden * kernel,
        )

    def with_mlp(self, layer: Layer, index: int) -> Layer:
        """Returns the layer with its MLP, or with experts and those that all tokens go through."""
        family = self.family
        layer = replace(layer, others=layer.others + family.others)
        if family.expert_width and self._is_sparse(index):
            return self._with_experts(layer)
        width = self.dense_width()
        of_first = 2 * width if family.is_gated else width
        biases = self.has_biases(family.biases[2]) * (of_first + self.hidden)
        added = self.mlp(width)
        return replace(
            layer,
            linears=layer.linears + added,
            adapted=layer.adapted + (0 if family.adapts_experts else sum(map(sum, added))),
            others=layer.others + biases,
            mlp=of_first,
        )

    def _with_experts(self, layer: Layer) -> Layer:
        family, hidden = self.family, self.hidden
        num, width = self.number(*EXPERT_COUNTS), self.number(family.expert_width)
        shared = self.number(family.shared_width) if family.shared_width else 0
        gate = ((hidden, 1),) if shared else ()
        if family.shared_width == "n_shared_experts":
            shared, gate = shared * width, ()
        added = self.mlp(shared) if shared else ()
        adapted = sum(map(sum, added + gate))
        if family.adapts_experts:
            # Factors of gate and up, which have twice the rank, and of down, for each expert.
            of_experts = num * (2 * (hidden + 2 * width) + width + hidden)
            adapted = sum(map(sum, gate)) + of_experts + hidden + num
        biases = family.expert_biases * (2 * width + hidden)
        return replace(
            layer,
            linears=layer.linears + added + gate,
            adapted=layer.adapted + adapted,
            others=layer.others + num * (hidden + family.expert_biases),
            mlp=2 * shared,
            experts=Experts(
                num=num,
                chosen=self.number("num_experts_per_tok"),
                parameters=3 * hidden * width + biases,
                width=2 * width,
            ),
        )

    def mlp(self, width: int) -> tuple[tuple[int, int], ...]:
        hidden = self.hidden
        if self.family.is_joined:
            return ((hidden, 2 * width), (width, hidden))
        first = ((hidden, width), (hidden, width)) if self.family.is_gated else ((hidden, width),)
        return (*first, (width, hidden))

    def dense_width(self) -> int:
        """Returns the width of an MLP, which LFM2 rounds up to a multiple."""
        width = self.number("block_ff_dim", "intermediate_size")
        if not self.fields.get("block_auto_adjust_ff_dim"):
            return width
        width, factor = 2 * width // 3, self.fields["block_ffn_dim_multiplier"]
        multiple = self.number("block_multiple_of")
        return width if factor is None else -(-int(factor * width) // multiple) * multiple

    def _is_sparse(self, index: int) -> bool:
        """Tells whether a layer has experts: the first ones may have none, or every so many."""
        num_dense = self.number_or(0, "first_k_dense_replace", "num_dense_layers")
        every = self.number_or(1, "decoder_sparse_step")
        return (
            index >= num_dense
            and (index + 1) % every == 0
            and index not in (self.fields.get("mlp_only_layers") or ())
        )

    def number(self, *names: str) -> int:
        """Returns the first of these fields that is there and not null."""
        for name in names:
            if (value := self.fields.get(name)) is not None:
                return int(value)
        raise KeyError(" or ".join(names))

    def number_or(self, otherwise: int, *names: str) -> int:
        """Returns the first of these fields that is there and not null, or the other number."""
        is_there = any(self.fields.get(name) is not None for name in names)
        return self.number(*names) if is_there else otherwise

    def has_biases(self, name: str) -> bool:
        return name == "yes" or bool(name and self.fields.get(name))
