"""The decoder for large weights on a CPU: oneDNN's products with weights copied into its layout.

`F.linear` reads a weight as it is stored. With few rows, as in a decode step, most of its time goes
into bringing the weight into the form that the processor's instructions take. `PackedDecoder` does
this once, for as long as the weights stay as they are, and has the activation, the gating product
and the residual sum computed with the product that they follow.

    decoder = PackedDecoder(model)      computes as Decoder does; rounding differs
    decoder.free()                      drops the copies; the next call makes them again

The copies take as much memory as the weights, so the engine frees them when no episode is left, and
before an update. docs/adr/0032-packed-weights.md has the figures.

Not covered: what `supports` refuses: accelerators, float64, sharded weights, LoRA layers, and
models so small that their weights stay in the processor's cache. `Decoder` computes those.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ajet.core.model.decoder import Attend, Decoder, is_sharded
from ajet.core.model.kernels.functions import kernels_for
from ajet.core.model.precision import rms_norm
from ajet.core.model.wide_layer import normed, rotate

MIN_WEIGHTS = 2**18
"""The weights of one MLP matrix from which packing pays; smaller ones stay in the cache anyway."""
NUM_ROWS = 32
"""The rows that oneDNN chooses its layout for; products of other sizes take the same layout."""
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class PackedLinear:
    """Computes a linear layer ``[in] -> [out]`` from a weight in oneDNN's layout."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *layers: Any) -> "PackedLinear":
        """Copies the weights of these linear layers, one below the other."""
        weight = torch.cat([layer.weight for layer in layers]) if layers[1:] else layers[0].weight
        biases = [layer.bias for layer in layers]
        bias = None if biases[0] is None else torch.cat(biases)
        return cls(_ops().mkldnn._reorder_linear_weight(weight, NUM_ROWS), bias)

    def __call__(self, x: Tensor, activation: str = "none") -> Tensor:
        """Returns ``activation(x W + b)``; "swish" is SiLU."""
        return _ops().mkldnn._linear_pointwise.default(
            x, self.weight, self.bias, activation, [], ""
        )

    def added_to(self, other: Tensor, x: Tensor) -> Tensor:
        """Returns ``x W + b + other``."""
        return _ops().mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "add")

    def times(self, other: Tensor, x: Tensor) -> Tensor:
        """Returns ``(x W + b) * other``."""
        return _ops().mkldnn._linear_pointwise.binary(x, other, self.weight, self.bias, "mul")


@dataclass(frozen=True)
class PackedLayer:
    """Holds the linear layers of one decoder layer."""

    qkv: PackedLinear
    out: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, layer: Any) -> "PackedLayer":
        """Copies the weights of a transformers layer."""
        attn, mlp = layer.self_attn, layer.mlp
        return cls(
            PackedLinear.of(attn.q_proj, attn.k_proj, attn.v_proj),
            PackedLinear.of(attn.o_proj),
            PackedLinear.of(mlp.gate_proj),
            PackedLinear.of(mlp.up_proj),
            PackedLinear.of(mlp.down_proj),
        )


class PackedDecoder(Decoder):
    """Computes what `Decoder` does, without gradients, from packed copies of the weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._kernels = kernels_for(next(model.parameters()))
        self._packed: list[PackedLayer] = []
        self._packed_head: PackedLinear | None = None

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Tells whether the weights can be packed, and are large enough for it to pay."""
        weight = next(model.parameters())
        if not (Decoder.supports(model) and weight.device.type == "cpu" and weight.dtype in DTYPES):
            return False
        config: Any = model.config
        return (
            config.hidden_size * config.intermediate_size >= MIN_WEIGHTS
            and has_onednn(weight.dtype)
            and has_plain_linears(model)
        )

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: object = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised."""
        self.pack()
        return super().__call__(token_ids_N, positions_N, attend)

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns the next-token logits ``[N, vocab]`` in the model's dtype."""
        assert self._packed_head is not None
        return self._packed_head(hidden_ND)

    def pack(self) -> None:
        """Copies the weights, unless they are."""
        if self._packed_head is None:
            self._packed = [PackedLayer.of(layer) for layer in self._layers]
            self._packed_head = PackedLinear.of(self._head)

    def free(self) -> None:
        """Drops the packed copies: the weights will change, or the engine has nothing to do."""
        self._packed = []
        self._packed_head = None

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layer, packed = self._layers[index], self._packed[index]
        num_rotated = self.num_heads + self.num_kv_heads
        norm = layer.input_layernorm
        qkv = packed.qkv(normed(x, norm.weight, norm.variance_epsilon))
        qkv = qkv.view(len(x), num_rotated + self.num_kv_heads, self.head_dim)
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        attn = layer.self_attn
        if hasattr(attn, "q_norm"):
            q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
            qk = torch.cat((rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k)), dim=1)
        if self._kernels is not None:
            self._kernels.rotate(qk, cos, sin, out=qk)
        else:
            qk = rotate(qk, cos, sin)
        out = attend(index, qk[:, : self.num_heads], qk[:, self.num_heads :], v)
        x = packed.out.added_to(x, out.reshape(len(x), -1))
        norm = layer.post_attention_layernorm
        h = normed(x, norm.weight, norm.variance_epsilon)
        return packed.down.added_to(x, packed.up.times(packed.gate(h, "swish"), h))


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


def has_onednn(dtype: torch.dtype) -> bool:
    """Tells whether this build of torch and this processor have oneDNN's products for `dtype`."""
    return torch.backends.mkldnn.is_available() and (
        dtype != torch.bfloat16 or _ops().mkldnn._is_mkldnn_bf16_supported()
    )


def _ops() -> Any:
    return torch.ops
