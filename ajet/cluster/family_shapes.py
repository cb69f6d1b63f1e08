"""The sizes of a model's layers, from the content of its config.json.

    {"model_type": "qwen3_moe", "num_experts": 128, …}   ->   ModelShape

A family is a row of `FAMILIES`: what its config.json does not say. Where the file leaves a field
out, transformers' default holds; a test compares the number of parameters with transformers' own
models. Families without a row are refused, since they would be counted wrongly. Not covered: layers
that predict several tokens, which transformers does not load; images and sound.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

from ajet.cluster.layer_shape import Experts, Layer, ModelShape
from ajet.core.error_codes import Code
from ajet.core.errors import ModelError

FULL, SLIDING, LINEAR, CONV = "full_attention", "sliding_attention", "linear_attention", "conv"
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True)
class Family:
    """What the models of a family have in common."""

    defaults: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Values of fields that a config.json may leave out."""
    norms: int = 2
    """Vectors as wide as the hidden state in a layer's norms: weights, and biases if there are."""
    norms_if: tuple[str, bool, int] | None = None
    """A field and a value of it with which there are so many instead."""
    last_norm: int = 1
    """Those of the norm before the head."""
    qk_norm: Literal["", "head", "biased", "all"] = ""
    """Norms of queries and keys: of one head's width, the same with biases, or of all heads'."""
    qk_switch: str = ""
    """The field that says whether there are these norms; without one there are."""
    biases: tuple[str, str, str] = ("", "", "")
    """The fields that say whether there are biases of queries, keys and values; of attention's
    output; of the MLP. "yes" is always."""
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
    """The type of the other layers."""
    expert_width: str = ""
    """The field that says how wide experts are; without one there are none."""
    shared_width: str = ""
    """The field that says how wide those are that all tokens go through, or how many."""
    adapts_experts: bool = False
    """Adapters on all linear layers are on experts and routers too, and not on other MLPs: peft
    takes the names of earlier releases for them, where they were linear layers."""
    expert_biases: bool = False
    """Experts and router have biases."""
    is_latent: bool = False
    """Keys and values are made of a narrow latent."""
    states: Literal["", "joined", "split", "apart"] = ""
    """The linear layers before linear attention: queries, keys, values and gate at once; without
    the gate; each of them apart."""
    head_gate: str = ""
    """The field that says whether each head's output has a gate of its own."""
    has_sinks: bool = False
    """Each head has a score that takes a part of its softmax."""
    others: int = 0
    """Further parameters of a layer."""
    has_head_bias: bool = False
    has_tree: bool = True
    """The tree layout computes these models (core/model/flat_decoder.py)."""


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
    "gemma3_text": _family(
        tied=True,
        norms=4,
        qk_norm="head",
        biases=ATTENTION_BIASES,
        pattern=6,
        defaults=GEMMA | {"vocab_size": 262208},
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
    "llama": _family(biases=ALL_BIASES, defaults=HEADS),
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
    "qwen2": _family(biases=("yes", "", ""), defaults=SWITCHED),
    "qwen2_moe": _family(
        biases=("qkv_bias", "", ""),
        expert_width="moe_intermediate_size",
        shared_width="shared_expert_intermediate_size",
        defaults=SWITCHED | SPARSE | {"qkv_bias": True},
    ),
    "qwen3": _family(
        qk_norm="head", biases=ATTENTION_BIASES, defaults=SWITCHED | {"head_dim": 128}
    ),
    "qwen3_5_moe_text": _family(
        qk_norm="head",
        biases=ATTENTION_BIASES,
        gated_queries=True,
        pattern=4,
        between=LINEAR,
        expert_width="moe_intermediate_size",
        shared_width="shared_expert_intermediate_size",
        states="split",
        defaults=STATES | {"num_key_value_heads": 2},
    ),
    "qwen3_5_text": _family(
        qk_norm="head",
        biases=ATTENTION_BIASES,
        gated_queries=True,
        pattern=4,
        between=LINEAR,
        states="split",
        defaults=STATES | {"num_key_value_heads": 4},
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
        qk_norm="head",
        biases=ATTENTION_BIASES,
        gated_queries=True,
        pattern=4,
        between=LINEAR,
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


def shape_of(config: Mapping[str, Any], where: str) -> ModelShape:
    """Returns the shape from a config.json's content, of a multimodal one that of its text model;
    `where` is named in errors."""
    content = _text_content(config)
    name = content.get("model_type")
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise ModelError(
            f"{where}: model_type {name!r}: the sizes of its layers are not known here, so nothing "
            "is estimated; docs/models.md names the families that are",
            code=Code.MODEL_UNSUPPORTED,
        )
    try:
        return _Sizes(family, content).shape()
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError) as error:
        raise ModelError(
            f"{where}: not the config.json of a {name} model: {error}", code=Code.MODEL_NOT_LOADED
        ) from error


def _text_content(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config of the text model. Whether a multimodal model's head is tied, its own
    field says, or else that of the text model."""
    content = config.get("text_config")
    if not isinstance(content, Mapping):
        return config
    tied = config.get("tie_word_embeddings", config.get("tie_embedding"))
    return dict(content) | ({} if tied is None else {"tie_word_embeddings": tied})


class _Sizes:
    """Reads the fields of a config.json, and makes the layers."""

    def __init__(self, family: Family, content: Mapping[str, Any]) -> None:
        self._family = family
        self._fields = dict(family.defaults) | dict(content)
        self.hidden = self._number("hidden_size")
        self.heads = self._number("num_attention_heads")
        kv_heads = self._fields["num_key_value_heads"]
        self.kv_heads = self.heads if kv_heads is None else int(kv_heads)
        self.head_dim = self._number_or(self.hidden // self.heads, "head_dim")
        if family.is_latent:
            self.kv_heads = self.heads
            self.head_dim = self._number("qk_nope_head_dim") + self._number("qk_rope_head_dim")

    def shape(self) -> ModelShape:
        vocab, family = self._number("vocab_size"), self._family
        tied = self._fields.get("tie_embedding", self._fields["tie_word_embeddings"])
        return ModelShape(
            hidden=self.hidden,
            vocab=vocab,
            tied=bool(tied),
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            each_layer=tuple(self._layer(*each) for each in enumerate(self._layer_types())),
            others=family.last_norm * self.hidden + family.has_head_bias * vocab,
            has_tree=family.has_tree,
        )

    def _layer_types(self) -> list[str]:
        """Returns the type of each layer: as the file says, or by the family's pattern."""
        num, family = self._number("num_hidden_layers"), self._family
        if (kinds := self._fields.get("layer_types")) is not None:
            if len(kinds) != num:
                raise ValueError(f"it has {len(kinds)} layer_types for {num} layers")
            return list(kinds)
        if (indices := self._fields.get("full_attn_idxs")) is not None:
            return [FULL if index in indices else family.between for index in range(num)]
        if family.pattern == "window":
            return [SLIDING] * num
        if family.pattern:
            every = self._number_or(0, "full_attention_interval")
            every = every or self._number_or(family.pattern, "sliding_window_pattern")
            return [family.between if (index + 1) % every else FULL for index in range(num)]
        if family.between != SLIDING or self._fields.get("use_sliding_window"):
            raise KeyError("layer_types")
        return [FULL] * num

    def _layer(self, index: int, kind: str) -> Layer:
        """Returns the layer with its norms: what mixes tokens, and its MLP or experts."""
        if kind in (FULL, SLIDING):
            mixer = self._latent_attention() if self._family.is_latent else self._attention(kind)
        elif kind == LINEAR and self._family.states:
            mixer = self._linear_attention()
        elif kind == CONV and self._family.between == CONV:
            mixer = self._convolution()
        else:
            raise ValueError(f"layers of type {kind!r} are not known here")
        switch, given, norms = self._family.norms_if or ("", True, 0)
        if bool(self._fields.get(switch)) != given:
            norms = self._family.norms
        adapted = sum(map(sum, mixer.linears))
        others = mixer.others + norms * self.hidden
        return self._with_mlp(replace(mixer, adapted=adapted, others=others), index)

    def _attention(self, kind: str) -> Layer:
        family, hidden = self._family, self.hidden
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        gate = q if family.gated_queries else 0
        linears = [(hidden, q + gate), (hidden, kv), (hidden, kv), (q, hidden)]
        if family.is_joined == "all":
            linears = [(hidden, q + 2 * kv), (q, hidden)]
        if family.head_gate and self._fields[family.head_gate]:
            linears.append((hidden, self.heads))
        of_qkv, of_output, _ = map(self._has_biases, family.biases)
        norms = {"": 0, "head": 2 * self.head_dim, "biased": 4 * self.head_dim, "all": q + kv}
        has_norms = not family.qk_switch or self._fields.get(family.qk_switch)
        others = of_qkv * (q + gate + 2 * kv) + of_output * hidden
        others += family.has_sinks * self.heads
        others += norms[family.qk_norm] if has_norms else 0
        return Layer(
            linears=tuple(linears),
            others=others,
            mixed=2 * q + gate + 2 * kv,
            kv=2 * kv,
            pair=2 * q,
            window=self._window(kind),
        )

    def _window(self, kind: str) -> int | None:
        """Returns the window of a layer; a switch says in some families whether there is one."""
        is_on = (
            "use_sliding_window" not in self._family.defaults or self._fields["use_sliding_window"]
        )
        if (self._family.pattern != "window" and kind != SLIDING) or not is_on:
            return None
        return self._number_or(0, "sliding_window") or None

    def _latent_attention(self) -> Layer:
        """Returns attention whose keys and values are products of a latent and of one rotated key
        that all heads have."""
        hidden, heads = self.hidden, self.heads
        rotated, latent = self._number("qk_rope_head_dim"), self._number("kv_lora_rank")
        value_dim = self._number("v_head_dim")
        q, out = heads * self.head_dim, heads * value_dim
        kept = latent + rotated
        made = heads * (self._number("qk_nope_head_dim") + value_dim)
        linears = [(hidden, kept), (latent, made), (out, hidden)]
        rank = self._fields["q_lora_rank"]
        linears += [(hidden, q)] if rank is None else [(hidden, rank), (rank, q)]
        others = (rank or 0) + latent
        if self._fields.get("attention_bias"):
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
        hidden, heads = self.hidden, self._number("linear_num_value_heads")
        key_dim, value_dim = (
            self._number("linear_key_head_dim"),
            self._number("linear_value_head_dim"),
        )
        keys, values = self._number("linear_num_key_heads") * key_dim, heads * value_dim
        kernel = self._number("linear_conv_kernel_dim")
        convolved = 2 * keys + values
        made = {
            "joined": (convolved + values, 2 * heads),
            "split": (convolved, values, heads, heads),
            "apart": (keys, keys, values, values, heads, heads),
        }[self._family.states]
        return Layer(
            linears=(*((hidden, width) for width in made), (values, hidden)),
            others=convolved * kernel + 2 * heads + value_dim,
            mixed=2 * convolved + 2 * values,
            state=convolved * kernel,
            wide_state=heads * key_dim * value_dim,
        )

    def _convolution(self) -> Layer:
        """Returns a short convolution between two gates."""
        hidden, kernel = self.hidden, self._number("conv_L_cache")
        biases = 5 * hidden if self._fields.get("conv_bias") else 0
        return Layer(
            linears=((hidden, 3 * hidden), (hidden, hidden)),
            others=hidden * kernel + biases,
            mixed=6 * hidden,
            state=hidden * kernel,
        )

    def _with_mlp(self, layer: Layer, index: int) -> Layer:
        """Returns the layer with its MLP, or with experts and those that all tokens go through."""
        family = self._family
        layer = replace(layer, others=layer.others + family.others)
        if family.expert_width and self._is_sparse(index):
            return self._with_experts(layer)
        width = self._dense_width()
        of_first = 2 * width if family.is_gated else width
        biases = self._has_biases(family.biases[2]) * (of_first + self.hidden)
        added = self._mlp(width)
        return replace(
            layer,
            linears=layer.linears + added,
            adapted=layer.adapted + (0 if family.adapts_experts else sum(map(sum, added))),
            others=layer.others + biases,
            mlp=of_first,
        )

    def _with_experts(self, layer: Layer) -> Layer:
        family, hidden = self._family, self.hidden
        num, width = self._number(*EXPERT_COUNTS), self._number(family.expert_width)
        shared = self._number(family.shared_width) if family.shared_width else 0
        gate = ((hidden, 1),) if shared else ()
        if family.shared_width == "n_shared_experts":
            shared, gate = shared * width, ()
        added = self._mlp(shared) if shared else ()
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
                chosen=self._number("num_experts_per_tok"),
                parameters=3 * hidden * width + biases,
                width=2 * width,
            ),
        )

    def _mlp(self, width: int) -> tuple[tuple[int, int], ...]:
        hidden = self.hidden
        if self._family.is_joined:
            return ((hidden, 2 * width), (width, hidden))
        first = ((hidden, width), (hidden, width)) if self._family.is_gated else ((hidden, width),)
        return (*first, (width, hidden))

    def _dense_width(self) -> int:
        """Returns the width of an MLP, which LFM2 rounds up to a multiple."""
        width = self._number("block_ff_dim", "intermediate_size")
        if not self._fields.get("block_auto_adjust_ff_dim"):
            return width
        width, factor = 2 * width // 3, self._fields["block_ffn_dim_multiplier"]
        multiple = self._number("block_multiple_of")
        return width if factor is None else -(-int(factor * width) // multiple) * multiple

    def _is_sparse(self, index: int) -> bool:
        """Tells whether a layer has experts: the first ones may have none, or every so many."""
        num_dense = self._number_or(0, "first_k_dense_replace", "num_dense_layers")
        every = self._number_or(1, "decoder_sparse_step")
        return (
            index >= num_dense
            and (index + 1) % every == 0
            and index not in (self._fields.get("mlp_only_layers") or ())
        )

    def _number(self, *names: str) -> int:
        """Returns the first of these fields that is there and not null."""
        for name in names:
            if (value := self._fields.get(name)) is not None:
                return int(value)
        raise KeyError(names[0])

    def _number_or(self, otherwise: int, *names: str) -> int:
        """Returns the first of these fields that is there and not null, or the other number."""
        is_there = any(self._fields.get(name) is not None for name in names)
        return self._number(*names) if is_there else otherwise

    def _has_biases(self, name: str) -> bool:
        return name == "yes" or bool(name and self._fields.get(name))
