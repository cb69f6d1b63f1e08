"""The decoder for CUDA GPUs: weights that read the same input are joined into one product.

    Decoder           norm, q, k, v, rotate twice, attend, o, add, norm, gate, up, gated, down, add
    JoinedDecoder     norm, qkv, rotate, attend, o + x, norm, gate and up, gated, down + x

A decode step of a small model takes as long as its launches: each kernel of few rows takes some
microseconds, however little it computes. `JoinedDecoder` launches 9 for a layer in place of 15.
docs/adr/0073-cuda-graphs.md has the figures.

Not covered: what `supports` refuses: other devices, float64, sharded weights, LoRA layers, biases
of o_proj and the MLP, and models whose copies would take more than `COPIED_SHARE` of the GPU's
memory: their steps take as long as reading the weights. `Decoder` computes those.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ajet.core.inference.engines.copied_decoder import CopiedDecoder, has_plain_linears
from ajet.core.model.decoder import Decoder
from ajet.core.model.kernels.devices import cuda_kernels_for
from ajet.core.model.wide_layer import gated

COPIED_SHARE = 0.1
"""The copies take no more of a GPU's memory, as keys and values do (in_process.py)."""


@dataclass(frozen=True)
class JoinedLayer:
    """Holds copies of the weights of one decoder layer, ``[outputs, inputs]`` each, and those that
    are joined with no other as they are."""

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Any) -> "JoinedLayer":
        """Copies the weights of a transformers layer."""
        attn, mlp = layer.self_attn, layer.mlp
        linears = (attn.q_proj, attn.k_proj, attn.v_proj)
        biases = [linear.bias for linear in linears]
        return cls(
            torch.cat([linear.weight for linear in linears]),
            None if biases[0] is None else torch.cat(biases),
            attn.o_proj.weight,
            torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)),
            mlp.down_proj.weight,
        )

    def project(self, h: Tensor) -> Tensor:
        return F.linear(h, self.qkv, self.qkv_bias)

    # Both sums are in place, so that they are part of the product: nothing else reads x.
    def add_attention(self, x: Tensor, out: Tensor) -> Tensor:
        return x.addmm_(out, self.out.T)

    def add_mlp(self, x: Tensor, h: Tensor) -> Tensor:
        gate, up = F.linear(h, self.gate_up).chunk(2, dim=1)
        return x.addmm_(gated(gate, up), self.down.T)


class JoinedDecoder(CopiedDecoder):
    """Computes what `Decoder` does, without gradients, in fewer launches."""

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Tells whether the weights can be joined, and are on a GPU with Triton's kernels."""
        weight = next(model.parameters())
        return (
            Decoder.supports(model)
            and cuda_kernels_for(weight) is not None
            and has_plain_linears(model)
            and not _has_other_biases(model)
            and _copied_bytes(model) <= COPIED_SHARE * gpu_bytes(weight.device)
        )

    def _copied(self, layer: Any) -> JoinedLayer:
        return JoinedLayer.of(layer)


def gpu_bytes(device: torch.device) -> int:
    """Returns the memory of a CUDA GPU."""
    return torch.cuda.get_device_properties(device).total_memory


def _copied_bytes(model: Any) -> int:
    return sum(
        linear.weight.nbytes
        for layer in model.model.layers
        for linear in (
            *(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            *(layer.mlp.gate_proj, layer.mlp.up_proj),
        )
    )


def _has_other_biases(model: Any) -> bool:
    return any(
        module.bias is not None
        for layer in model.model.layers
        for module in (layer.self_attn.o_proj, *layer.mlp.children())
        if isinstance(module, nn.Linear)
    )
