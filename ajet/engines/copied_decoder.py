"""Decoders that compute from copies of the weights, which are valid until the weights change. The
copies double the memory of these weights, so the engine frees them between rollouts and before an
update. `JoinedDecoder` is the one for CUDA GPUs; packed_decoder.py has the one for CPUs.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ajet.core.model.decoder import Attend, Decoder, is_sharded
from ajet.core.model.kernels.devices import cuda_kernels_for
from ajet.core.model.precision import rms_norm
from ajet.core.model.wide_layer import gated, normed, rotated

COPIED_SHARE = 0.1
"""The largest share of the GPU's memory for the copies of a `JoinedDecoder`."""


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
    """A `Decoder` over copies, without gradients; rounding differs. After `free` the next call
    copies the weights again."""

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
    """A `Decoder` for CUDA GPUs, without gradients: weights with the same input are one product.

    Decoder           norm, q, k, v, rotate twice, attend, o, add, norm, gate, up, gated, down, add
    JoinedDecoder     norm, qkv, rotate, attend, o + x, norm, gate and up, gated, down + x

    A decode step of a small model is bound by launches, which are 9 per layer here instead of 15
    (docs/adr/0073-cuda-graphs.md). Larger models, whose steps are bound by reading the weights, and
    models with shards, LoRA layers or biases of o_proj and the MLP keep the plain `Decoder`.
    """

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
