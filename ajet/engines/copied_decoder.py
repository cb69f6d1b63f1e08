"""A decoder that computes from copies of the weights, which are valid until the weights change.

    decoder = PackedDecoder(model)      packed_decoder.py, or JoinedDecoder of joined_decoder.py
    decoder.free()                      drops the copies; the next call makes them again

The copies double the memory of these weights, so the engine frees them between rollouts and before
an update.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ajet.core.model.decoder import Attend, Decoder, is_sharded
from ajet.core.model.precision import rms_norm
from ajet.core.model.wide_layer import normed, rotated


class CopiedLayer(Protocol):
    """The products of one decoder layer, computed from copies of its weights."""

    def project(self, h: Tensor) -> Tensor:
        """Returns ``[queries | keys | values]`` of shape ``[N, outputs]``."""
        ...

    def add_attention(self, x: Tensor, out: Tensor) -> Tensor:
        """Returns ``x + o_proj(out)``; may overwrite `x`."""
        ...

    def add_mlp(self, x: Tensor, h: Tensor) -> Tensor:
        """Returns ``x + mlp(h)``; may overwrite `x`."""
        ...


class CopiedDecoder(Decoder, ABC):
    """A `Decoder` over copies, without gradients; rounding differs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._copies: list[CopiedLayer] = []

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: object = None
    ) -> Tensor:
        self.pack()
        return super().__call__(token_ids_N, positions_N, attend)

    def pack(self) -> None:
        """Copies the weights, if that has not been done."""
        if not self._copies:
            self._copies = [self._copied(layer) for layer in self._layers]

    def free(self) -> None:
        self._copies = []

    @abstractmethod
    def _copied(self, layer: Any) -> CopiedLayer:
        """Copies the weights of a transformers layer."""

    def _rotated(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotated(qk, cos, sin)

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layer, copied = self._layers[index], self._copies[index]
        norm = layer.input_layernorm
        qkv = copied.project(normed(x, norm.weight, norm.variance_epsilon))
        qkv = qkv.unflatten(1, (-1, self.head_dim))
        # Queries and keys are rotated together: one launch in place of two.
        num_rotated = self.num_heads + self.num_kv_heads
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        attn = layer.self_attn
        if hasattr(attn, "q_norm"):  # Qwen3 normalises each head
            q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
            qk = torch.cat((rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k)), dim=1)
        qk = self._rotated(qk, cos, sin)
        out = attend(index, qk[:, : self.num_heads], qk[:, self.num_heads :], v)
        x = copied.add_attention(x, out.reshape(len(x), -1))
        norm = layer.post_attention_layernorm
        return copied.add_mlp(x, normed(x, norm.weight, norm.variance_epsilon))


def has_plain_linears(model: Any) -> bool:
    """Returns whether all linear layers of a model that `Decoder` supports are plain `nn.Linear`:
    no adapters, no shards."""
    if hasattr(model, "get_base_model") or is_sharded(model):  # the first: a peft wrapper
        return False
    linears = [model.lm_head]
    for layer in model.model.layers:
        attn, mlp = layer.self_attn, layer.mlp
        linears += [attn.q_proj, attn.k_proj, attn.v_proj, attn.o_proj]
        linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    return all(type(linear) is nn.Linear for linear in linears)
