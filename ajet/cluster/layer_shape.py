"""The sizes of a decoder, layer by layer, and the numbers that follow from them.

    layer    linear layers, other parameters, experts
             keys and values of a token, a window, a state of each row
    model    its layers, the embedding, the head

Not covered: how a config.json becomes these (family_shapes.py, layer_formulas.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """The experts of a layer, of which a router chooses some for each token."""

    num: int
    chosen: int
    parameters: int
    """One expert has so many parameters."""
    width: int
    """Gate and up of one expert are so wide together."""

    @property
    def idle(self) -> int:
        """Returns the parameters that a token is not multiplied with."""
        return (self.num - self.chosen) * self.parameters

    def unread(self, rows: float) -> float:
        """Returns the parameters that a decode step of so many rows does not read, if a router
        chooses each expert as often: one that no row chooses."""
        return self.num * self.parameters * (1 - self.chosen / self.num) ** rows


@dataclass(frozen=True)
class Layer:
    """The sizes of one layer; widths are in values for each token."""

    linears: tuple[tuple[int, int], ...]
    """Each of its linear layers has so many inputs and outputs. Experts and most routers are no
    linear layers."""
    others: int
    """Norms, biases, routers, convolutions, states and sinks have so many parameters."""
    mixed: int
    """Queries, keys, values and attention's output, or what is in their place, are so wide
    together."""
    mlp: int = 0
    """Gate and up are so wide together, those of experts that all tokens go through included."""
    kv: int = 0
    """The in-process engine keeps so many values of a token: its keys and values."""
    latent: int = 0
    """Servers keep so many values of a token where its keys and values are made of a latent, which
    they keep in their place; 0 where there is no latent."""
    pair: int = 0
    """Attention multiplies so many numbers for each pair of a query and a key, in all heads."""
    window: int | None = None
    """A query sees no more tokens than this; None if it sees all before it."""
    state: int = 0
    """A row keeps a state of so many values, however long it is."""
    wide_state: int = 0
    """It keeps so many more, which are float32 in any model."""
    experts: Experts | None = None
    adapted: int = 0
    """What gets adapters, linear layers or experts too, has so many inputs and outputs in all."""

    @property
    def parameters(self) -> int:
        of_experts = self.experts.num * self.experts.parameters if self.experts else 0
        return self.linear_parameters + self.others + of_experts

    @property
    def linear_parameters(self) -> int:
        return sum(inputs * outputs for inputs, outputs in self.linears)

    @property
    def active_parameters(self) -> int:
        """Returns the parameters that one token is multiplied with."""
        return self.parameters - (self.experts.idle if self.experts else 0)

    @property
    def mlp_width(self) -> int:
        """Returns the width of gate and up, with those of a token's chosen experts."""
        return self.mlp + (self.experts.chosen * self.experts.width if self.experts else 0)

    @property
    def chosen(self) -> int:
        """Returns the number of a token's experts."""
        return self.experts.chosen if self.experts else 0

    @property
    def scores(self) -> int:
        """Returns the width of the router's scores."""
        return self.experts.num if self.experts else 0

    def kept_bytes(
        self, value_bytes: int, tokens: float, rows: float, *, has_latents: bool
    ) -> float:
        """Returns the bytes that a cache keeps of rows with so many tokens in all."""
        width = self.latent if has_latents and self.latent else self.kv
        seen = tokens if self.window is None else min(tokens, rows * self.window)
        return value_bytes * (width * seen + rows * self.state) + 4 * rows * self.wide_state


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder, and the numbers of parameters that follow from them."""

    hidden: int
    vocab: int
    tied: bool
    kv_heads: int
    head_dim: int
    each_layer: tuple[Layer, ...]
    others: int
    """The last norm and a bias of the head have so many parameters."""
    tables: int = 0
    """Further embeddings, of which a token reads one row, have so many parameters."""
    adapted: int = 0
    """What gets adapters beside the layers has so many inputs and outputs in all."""
    has_tree: bool = True
    """Tells whether the tree layout computes the model; else rows are padded."""
    has_decoder: bool = False
    """Tells whether core/model/decoder.py computes the model, which keeps less of a layer."""

    @property
    def layers(self) -> int:
        return len(self.each_layer)

    @property
    def embedding_parameters(self) -> int:
        """Returns the parameters of the embedding tables, and of the head if it has weights of its
        own."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.tables

    @property
    def parameters(self) -> int:
        of_layers = sum(layer.parameters for layer in self.each_layer)
        return of_layers + self.embedding_parameters + self.others

    @property
    def active_parameters(self) -> int:
        """Returns the parameters that one token is multiplied with, and those of the embedding."""
        return self.parameters - self.tables - sum(each.idle for each in self._experts)

    @property
    def active_layer_parameters(self) -> int:
        """Returns the parameters of all layers that one token is multiplied with."""
        return sum(layer.active_parameters for layer in self.each_layer)

    @property
    def largest_layer(self) -> int:
        """Returns the parameters of the layer that has the most."""
        return max(layer.parameters for layer in self.each_layer)

    @property
    def largest_weight(self) -> int:
        """Returns the values of the largest tensor: the embedding, or gate and up of a layer's
        experts."""
        of_experts = (each.num * each.width * self.hidden for each in self._experts)
        return max((self.vocab * self.hidden, self.tables, *of_experts))

    @property
    def largest_linear(self) -> int:
        """Returns the parameters of the largest linear layer inside the layers."""
        return max(ins * outs for layer in self.each_layer for ins, outs in layer.linears)

    @property
    def linear_parameters(self) -> int:
        """Returns the parameters of all linear layers and of the head."""
        of_layers = sum(layer.linear_parameters for layer in self.each_layer)
        return of_layers + self.vocab * self.hidden

    def read_parameters(self, rows: float) -> float:
        """Returns the parameters that a decode step of so many rows reads: all but those of experts
        that no row chooses."""
        return self.parameters - self.tables - sum(each.unread(rows) for each in self._experts)

    def is_plain(self, length: int) -> bool:
        """Tells whether the in-process engine's own forward pass samples rows of this length, by
        the same kernels at each step: no experts, no states, no window that hides a token, keys of
        one width."""
        is_special = any(
            layer.experts or layer.state or (layer.window or length) < length
            for layer in self.each_layer
        )
        has_one_width = len({layer.kv for layer in self.each_layer}) == 1
        return self.has_tree and has_one_width and not is_special

    def lora_parameters(self, rank: int) -> int:
        """Returns the parameters of adapters on all linear layers: rank x (in + out) each."""
        return rank * (self.adapted + sum(layer.adapted for layer in self.each_layer))

    def trained_parameters(self, lora_rank: int) -> int:
        """Returns the parameters that a run trains: all of them, or adapters of this rank."""
        return self.lora_parameters(lora_rank) if lora_rank else self.parameters

    def cache_parts(self, *, has_latents: bool) -> int:
        """Returns how many parts a row's keys and values can have: heads, but one of latents."""
        is_one = has_latents and any(layer.latent for layer in self.each_layer)
        return 1 if is_one else self.kv_heads

    def kept_bytes(
        self, value_bytes: int, tokens: float, rows: float = 1, *, has_latents: bool = False
    ) -> float:
        """Returns the bytes that a cache keeps of one row, or of rows with so many tokens in all:
        keys and values, at most those of a layer's window, and states. With `has_latents` what
        keys and values are made of is kept in their place."""
        return sum(
            layer.kept_bytes(value_bytes, tokens, rows, has_latents=has_latents)
            for layer in self.each_layer
        )

    @property
    def _experts(self) -> Iterable[Experts]:
        return (layer.experts for layer in self.each_layer if layer.experts)
