"""The layers of Gemma 4: wider heads in layers that see all, keys and values that later layers
share, an embedding for each layer, experts beside an MLP."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ajet.cluster.layer_formulas import LayerFormulas
from ajet.cluster.layer_shape import Experts, Layer, ModelShape
from ajet.cluster.model_families import FULL, Family


class Gemma4Formulas(LayerFormulas):
    """Makes the layers, and what the model has beside them."""

    def __init__(self, family: Family, content: Mapping[str, Any]) -> None:
        super().__init__(family, content)
        self._narrow = self.head_dim, self.kv_heads
        self._wide = self._of_full_layers()
        self._first_sharing = self.number("num_hidden_layers") - self.number_or(
            0, "num_kv_shared_layers"
        )

    def _of_full_layers(self) -> tuple[int, int]:
        """Returns the width and the number of heads of keys in layers that see all tokens."""
        kv_heads = self.kv_heads
        if given := self.fields.get("per_layer_config"):  # as transformers writes it
            by_layer = {int(index): dict(each) for index, each in given.items()}
            own = by_layer[min(by_layer)]
            full = {index for index, kind in enumerate(self.layer_types()) if kind == FULL}
            if by_layer.keys() != full or any(each != own for each in by_layer.values()):
                raise ValueError("per_layer_config has other layers than those that see all tokens")
            return own["head_dim"], own.get("num_key_value_heads", kv_heads)
        if self.fields.get("attention_k_eq_v"):
            kv_heads = self.number_or(kv_heads, "num_global_key_value_heads")
        return self.number("global_head_dim"), kv_heads

    def layer_types(self) -> list[str]:
        kinds = super().layer_types()
        return [*kinds[:-1], FULL]

    def attention(self, index: int, kind: str) -> Layer:
        self.head_dim, self.kv_heads = self._wide if kind == FULL else self._narrow
        layer = super().attention(index, kind)
        kv = (self.hidden, self.kv_heads * self.head_dim)
        has_biases = self.has_biases("attention_bias")
        queries, _, _, output = layer.linears
        if index >= self._first_sharing:
            others = layer.others - self.head_dim - has_biases * 2 * kv[1]
            return replace(layer, linears=(queries, output), others=others, kv=0)
        if kind == FULL and self.fields.get("attention_k_eq_v"):
            others = layer.others - has_biases * kv[1]
            return replace(layer, linears=(queries, kv, output), others=others)
        return layer

    def with_mlp(self, layer: Layer, index: int) -> Layer:
        hidden, width = self.hidden, self.number("intermediate_size")
        if self.fields.get("use_double_wide_mlp") and index >= self._first_sharing:
            width *= 2
        linears = self.mlp(width)
        others = 0
        if narrow := self._per_layer:
            linears = (*linears, (hidden, narrow), (narrow, hidden))
            others += hidden
        experts = None
        if self.fields.get("enable_moe_block"):
            num, expert_width = self.number("num_experts"), self.number("moe_intermediate_size")
            linears = (*linears, (hidden, num))
            others += 4 * hidden + num
            experts = Experts(
                num=num,
                chosen=self.number("top_k_experts"),
                parameters=3 * hidden * expert_width,
                width=2 * expert_width,
            )
        return replace(
            layer,
            linears=layer.linears + linears,
            adapted=layer.adapted + sum(map(sum, linears)),
            others=layer.others + others,
            mlp=2 * width,
            experts=experts,
        )

    @property
    def _per_layer(self) -> int:
        """Returns the width of the embedding that each layer has."""
        return self.number_or(0, "hidden_size_per_layer_input")

    def shape(self) -> ModelShape:
        shape = super().shape()
        width = self._per_layer * shape.layers
        return replace(
            shape,
            kv_heads=min(self._narrow[1], self._wide[1]),
            head_dim=max(self._narrow[0], self._wide[0]),
            others=shape.others + self.hidden * width + self._per_layer,
            tables=width and width * self.number("vocab_size_per_layer_input"),
            adapted=width and self.hidden + width,
        )
