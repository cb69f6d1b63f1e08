"""The decoder for CUDA GPUs: weights that read the same input are joined into one product.

    Decoder           norm, q, k, v, rotate twice, attend, o, add, norm, gate, up, gated, down, add
    JoinedDecoder     norm, qkv, rotate, attend, o + x, norm, gate and up, gated, down + x

A decode step of a small model takes as long as its launches: each kernel of few rows takes some
microseconds, however little it computes. `JoinedDecoder` launches 9 for a layer in place of 15.

    decoder = JoinedDecoder(model)      computes as Decoder does; rounding differs
    decoder.free()                      drops the copies; the next call makes them again

The copies take as much memory as the weights that they join, so the engine frees them when no
episode is left, and before an update. docs/adr/0088-joined-weights.md has the figures.

Not covered: what `supports` refuses: other devices, float64, sharded weights, LoRA layers, biases
of o_proj and the MLP, and models whose copies would take more than `COPIED_SHARE` of the GPU's
memory: their steps take as long as reading the weights. `Decoder` computes those.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ajet.core.inference.engines.packed_decoder import has_plain_linears
from ajet.core.model.decoder import Attend, Decoder
from ajet.core.model.kernels.devices import cuda_kernels_for
from ajet.core.model.precision import rms_norm
from ajet.core.model.wide_layer import gated, normed, rotated

COPIED_SHARE = 0.1
"""The copies take no more of a GPU's memory, as keys and values do (in_process.py)."""


@dataclass(frozen=True)
class JoinedLayer:
    """Holds copies of the weights of one decoder layer, ``[outputs, hidden]`` each."""

    qkv: Tensor
    qkv_bias: Tensor | None
    gate_up: Tensor

    @classmethod
    def of(cls, layer: Any) -> "JoinedLayer":
        """Copies the weights of a transformers layer."""
        attn, mlp = layer.self_attn, layer.mlp
        linears = (attn.q_proj, attn.k_proj, attn.v_proj)
        biases = [each.bias for each in linears]
        return cls(
            torch.cat([each.weight for each in linears]),
            None if biases[0] is None else torch.cat(biases),
            torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)),
        )


class JoinedDecoder(Decoder):
    """Computes what `Decoder` does, without gradients, in fewer launches."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._joined: list[JoinedLayer] = []

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

    def __call__(
        self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend, forest: object = None
    ) -> Tensor:
        """Returns the final hidden states ``[N, hidden]``, already normalised."""
        self.pack()
        return super().__call__(token_ids_N, positions_N, attend)

    def pack(self) -> None:
        """Copies the weights, unless they are."""
        if not self._joined:
            self._joined = [JoinedLayer.of(layer) for layer in self._layers]

    def free(self) -> None:
        """Drops the copies: the weights will change, or the engine has nothing to do."""
        self._joined = []

    def _layer(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        layer, joined = self._layers[index], self._joined[index]
        attn, mlp = layer.self_attn, layer.mlp
        qkv = F.linear(_norm(layer.input_layernorm, x), joined.qkv, joined.qkv_bias)
        qkv = qkv.unflatten(1, (-1, self.head_dim))
        num_rotated = self.num_heads + self.num_kv_heads
        qk, v = qkv[:, :num_rotated], qkv[:, num_rotated:]
        if hasattr(attn, "q_norm"):
            q, k = qk[:, : self.num_heads], qk[:, self.num_heads :]
            qk = torch.cat((rms_norm(attn.q_norm, q), rms_norm(attn.k_norm, k)), dim=1)
        qk = rotated(qk, cos, sin)
        out = attend(index, qk[:, : self.num_heads], qk[:, self.num_heads :], v)
        # In place, so that the sum is part of the product: nothing else reads x.
        x.addmm_(out.reshape(len(x), -1), attn.o_proj.weight.T)
        h = F.linear(_norm(layer.post_attention_layernorm, x), joined.gate_up)
        gate, up = h.chunk(2, dim=1)
        return x.addmm_(gated(gate, up), mlp.down_proj.weight.T)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return normed(x, norm.weight, norm.variance_epsilon)


def gpu_bytes(device: torch.device) -> int:
    """Returns the memory of a CUDA GPU."""
    return torch.cuda.get_device_properties(device).total_memory


def _copied_bytes(model: Any) -> int:
    return sum(
        each.weight.nbytes
        for layer in model.model.layers
        for each in (
            *(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
            *(layer.mlp.gate_proj, layer.mlp.up_proj),
        )
    )


def _has_other_biases(model: Any) -> bool:
    return any(
        each.bias is not None
        for layer in model.model.layers
        for each in (layer.self_attn.o_proj, *layer.mlp.children())
        if isinstance(each, nn.Linear)
    )
