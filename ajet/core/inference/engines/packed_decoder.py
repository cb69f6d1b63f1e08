"""The decoder for large weights on a CPU: oneDNN's products with weights copied into its layout.

`F.linear` reads a weight as it is stored. With few rows, as in a decode step, most of its time goes
into bringing the weight into the form that the processor's instructions take. `PackedDecoder` does
this once, for as long as the weights stay as they are, and has the activation, the gating product
and the residual sum computed with the product that they follow. docs/adr/0032-packed-weights.md has
the figures.

Not covered: what `supports` refuses: accelerators, float64, sharded weights, LoRA layers, and
models so small that their weights stay in the processor's cache. `Decoder` computes those.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ajet.core.inference.engines.copied_decoder import CopiedDecoder, has_plain_linears
from ajet.core.model.decoder import Decoder
from ajet.core.model.kernels.functions import kernels_for
from ajet.core.model.wide_layer import rotate

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

    def added_to(self, addend: Tensor, x: Tensor) -> Tensor:
        """Returns ``x W + b + other``."""
        return _ops().mkldnn._linear_pointwise.binary(x, addend, self.weight, self.bias, "add")

    def times(self, factor: Tensor, x: Tensor) -> Tensor:
        """Returns ``(x W + b) * other``."""
        return _ops().mkldnn._linear_pointwise.binary(x, factor, self.weight, self.bias, "mul")


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

    def project(self, h: Tensor) -> Tensor:
        return self.qkv(h)

    def add_attention(self, x: Tensor, out: Tensor) -> Tensor:
        return self.out.added_to(x, out)

    def add_mlp(self, x: Tensor, h: Tensor) -> Tensor:
        return self.down.added_to(x, self.up.times(self.gate(h, "swish"), h))


class PackedDecoder(CopiedDecoder):
    """Computes what `Decoder` does, without gradients, from packed copies of the weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._kernels = kernels_for(next(model.parameters()))
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

    def logits(self, hidden_ND: Tensor) -> Tensor:
        """Returns the next-token logits ``[N, vocab]`` in the model's dtype."""
        assert self._packed_head is not None
        return self._packed_head(hidden_ND)

    def pack(self) -> None:
        super().pack()
        if self._packed_head is None:
            self._packed_head = PackedLinear.of(self._head)

    def free(self) -> None:
        super().free()
        self._packed_head = None

    def _copied(self, layer: Any) -> PackedLayer:
        return PackedLayer.of(layer)

    def _rotated(self, qk: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self._kernels is None:
            return rotate(qk, cos, sin)
        self._kernels.rotate(qk, cos, sin, out=qk)
        return qk


def has_onednn(dtype: torch.dtype) -> bool:
    """Tells whether this build of torch and this processor have oneDNN's products for `dtype`."""
    return torch.backends.mkldnn.is_available() and (
        dtype != torch.bfloat16 or _ops().mkldnn._is_mkldnn_bf16_supported()
    )


def _ops() -> Any:
    return torch.ops
