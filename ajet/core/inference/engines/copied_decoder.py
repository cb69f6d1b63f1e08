"""The decoder over copies of the weights, for as long as these stay as they are.

    decoder = PackedDecoder(model)      packed_decoder.py, or JoinedDecoder of joined_decoder.py
    decoder.free()                      drops the copies; the next call makes them again

The copies take as much memory as the weights that are copied, so the engine frees them when no
episode is left, and before an update.

Not covered: which copies are made, and for which models (the subclasses); gradients.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ajet.core.model.decoder import Attend, Decoder, is_sharded
from ajet.core.model.precision import rms_norm
from ajet.core.model.wide_layer import normed, rotated


class CopiedLayer(Protocol):
    """Computes the products of one decoder layer from copies of its weights."""

    def project(self, h: Tensor) -> Tensor:
        """Returns queries, keys and values ``[N, outputs]``, beside one another."""
        ...

    def add_attention(self, x: Tensor, out: Tensor) -> Tensor:
        """Returns ``x + o_proj(out)``, perhaps in the memory of `x`."""
        ...

    def add_mlp(self, x: Tensor, h: Tensor) -> Tensor:
        """Returns ``x + mlp(h)``, perhaps in the memory of `x`."""
        ...


class CopiedDecoder(Decoder, ABC):
    """Computes what `Decoder` does, without gradients, from copies; rounding differs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._copies: list[CopiedLayer] = []

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: object = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised."""
        self.pack()
        return super().__call__(token_ids_N, positions_N, attend)

    def pack(self) -> None:
        """Copies the weights, unless they are."""
        if not self._copies:
            self._copies = [self._copied(layer) for layer in self._layers]

    def free(self) -> None:
        """Drops the copies: the weights will change, or the engine has nothing to do."""
        self._copies = []

    @abstractmethod
    def _copied(self, layer: Any) -> CopiedLayer:
        """Copies the weights of a transformers layer."""

    def _rotated(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotated(qk, cos, sin)

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layer, copied = self._layers[index], self._copies[index]
        qkv = copied.project(_normed(layer.input_layernorm, x))
        qkv = qkv.unflatten(1, (-1, self.head_dim))
        num_rotated = self.num_heads + self.num_kv_heads
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        attn = layer.self_attn
        if hasattr(attn, "q_norm"):
            q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
            qk = torch.cat((rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k)), dim=1)
        qk = self._rotated(qk, cos, sin)
        out = attend(index, qk[:, : self.num_heads], qk[:, self.num_heads :], v)
        x = copied.add_attention(x, out.reshape(len(x), -1))
        return copied.add_mlp(x, _normed(layer.post_attention_layernorm, x))


def has_plain_linears(model: nn.Module) -> bool:
    """Tells whether the linear layers of a model that `Decoder` supports are whole, and nothing
    but linear layers: no adapters, no shards."""
    return (
        not hasattr(model, "get_base_model")  # a peft wrapper
        and all(type(layer) is nn.Linear for layer in _linear_layers(model))
        and not is_sharded(model)
    )


def _linear_layers(model: Any) -> list[nn.Module]:
    layers = [model.lm_head]
    for layer in model.model.layers:
        attn, mlp = layer.self_attn, layer.mlp
        layers += [attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj]
        layers += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return layers


def _normed(norm: Any, x: Tensor) -> Tensor:
    return normed(x, norm.weight, norm.variance_epsilon)
