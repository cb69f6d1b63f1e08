"""The decoder for CUDA GPUs: weights with the same input are joined into one product.

    Decoder           norm, q, k, v, rotate twice, attend, o, add, norm, gate, up, gated, down, add
    JoinedDecoder     norm, qkv, rotate, attend, o + x, norm, gate and up, gated, down + x

A decode step of a small model is bound by launches, which are 9 per layer here instead of 15
(docs/adr/0073-cuda-graphs.md). Larger models, whose steps are bound by reading the weights, and
models with shards, LoRA layers or biases of o_proj and the MLP keep the plain `Decoder`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ajet.core.model.decoder import Decoder
from ajet.core.model.kernels.devices import cuda_kernels_for
from ajet.core.model.wide_layer import gated
from ajet.engines.copied_decoder import CopiedDecoder, has_plain_linears

COPIED_SHARE = 0.1
"""The largest share of the GPU's memory for the copies."""


@dataclass(frozen=True)
class JoinedLayer:
    """The weights of one decoder layer, ``[outputs, inputs]`` each; joined ones are copies."""

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Any) -> "JoinedLayer":
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

    # Both sums are in place, so that the product's kernel adds them. Nothing else reads x.
    def add_attention(self, x: Tensor, out: Tensor) -> Tensor:
        return x.addmm_(out, self.out.T)

    def add_mlp(self, x: Tensor, h: Tensor) -> Tensor:
        gate, up = F.linear(h, self.gate_up).chunk(2, dim=1)
        return x.addmm_(gated(gate, up), self.down.T)


class JoinedDecoder(CopiedDecoder):
    """A `Decoder` with fewer launches, without gradients."""

    @staticmethod
    def supports(model: Any) -> bool:
        """Returns whether the weights can be joined, and are on a GPU with Triton's kernels."""
        weight = next(model.parameters())
        if not (
            Decoder.supports(model)
            and cuda_kernels_for(weight) is not None
            and has_plain_linears(model)
        ):
            return False
        num_bytes = 0
        for layer in model.model.layers:
            attn, mlp = layer.self_attn, layer.mlp
            # `JoinedLayer` only has a bias for queries, keys and values.
            added = (attn.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
            if any(linear.bias is not None for linear in added):
                return False
            joined = (attn.q_proj, attn.k_proj, attn.v_proj, mlp.gate_proj, mlp.up_proj)
            num_bytes += sum(linear.weight.nbytes for linear in joined)
        return num_bytes <= COPIED_SHARE * gpu_bytes(weight.device)

    def _copied(self, layer: Any) -> JoinedLayer:
        return JoinedLayer.of(layer)


def gpu_bytes(device: torch.device) -> int:
    """Returns the memory of a CUDA GPU."""
    return torch.cuda.get_device_properties(device).total_memory
