"""Large weights on a CPU: oneDNN's products with weights copied into its layout. With few rows, as
in a decode step, `F.linear` spends most of its time on converting the weight to the layout of the
processor's instructions; here that is done once (docs/adr/0032-packed-weights.md).
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ajet.core.model.decoder import Decoder, is_sharded
from ajet.core.model.kernels.functions import kernels_for
from ajet.core.model.wide_layer import rotate
from ajet.engines.copied_decoder import CopiedDecoder, has_plain_linears

MIN_WEIGHTS = 2**18
"""The smallest MLP matrix that is worth packing; smaller ones stay in the processor's cache."""
NUM_ROWS = 32
"""The number of rows for which oneDNN chooses its layout; products of any size can use it."""
DTYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class PackedLinear:
    """A linear layer with its weight in oneDNN's layout."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *layers: Any) -> "PackedLinear":
        """Copies the weights of linear layers with one input, joined along the outputs."""
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
    """The linear layers of one decoder layer."""

    qkv: PackedLinear
    out: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear

    @classmethod
    def of(cls, layer: Any) -> "PackedLayer":
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
    """A `Decoder` over packed copies of the weights, without gradients. Activation, gating and
    residual sum are fused into the products. Small models, shards and LoRA layers keep the plain
    `Decoder`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self._kernels = kernels_for(next(model.parameters()))
        self._packed_head: PackedLinear | None = None

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Returns whether the weights can be packed and are large enough."""
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
    """Returns whether this build of torch and this processor have oneDNN's products for `dtype`."""
    return torch.backends.mkldnn.is_available() and (
        dtype != torch.bfloat16 or _ops().mkldnn._is_mkldnn_bf16_supported()
    )


def _ops() -> Any:
    return torch.ops


@dataclass
class SharedCopy:
    """The packed copy of a layer's weight, and how many models compute from it."""

    weight: Tensor
    packed: PackedLinear
    num_users: int = 0


_shared: dict[int, SharedCopy] = {}
"""By the id of the weight, which the copy keeps alive."""
_sharing = threading.Lock()


class PackedWeights:
    """Packed copies of the large linear layers of a model that `PackedDecoder` does not know.

    The model calls its `nn.Linear` layers as before, but in the engine's thread, which runs under
    `torch.inference_mode`, they compute from the copies. Adapters over one base are separate
    modules over the same tensors, so the copies of tensors that are not trained are shared by all
    models in the process.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = _large_linears(model)
        self._own_forwards: list[Callable[..., Tensor] | None] = []
        self._release: Callable[[], object] = lambda: None

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Returns whether the weights can be packed and are large enough."""
        weight = next(model.parameters())
        return (
            weight.device.type == "cpu"
            and weight.dtype in DTYPES
            and has_onednn(weight.dtype)
            and not is_sharded(model)
            and bool(_large_linears(model))
        )

    def pack(self) -> None:
        """Copies the weights, if that has not been done."""
        if self._own_forwards:
            return
        shared: list[Tensor] = []
        self._release = weakref.finalize(self, _release, shared)
        for layer in self._layers:
            # A layer may already have a `forward` of its instance, which `free` restores.
            self._own_forwards.append(layer.__dict__.get("forward"))
            if layer.weight.requires_grad:
                packed = PackedLinear.of(layer)
            else:
                with _sharing:
                    weight_id = id(layer.weight)
                    if weight_id not in _shared:
                        _shared[weight_id] = SharedCopy(layer.weight, PackedLinear.of(layer))
                    _shared[weight_id].num_users += 1
                    packed = _shared[weight_id].packed
                shared.append(layer.weight)
            layer.forward = partial(_forward, packed, layer.forward)

    def free(self) -> None:
        for layer, forward in zip(self._layers, self._own_forwards, strict=False):
            if forward is None:
                del layer.forward
            else:
                layer.forward = forward
        self._own_forwards = []
        self._release()


def _release(weights: Sequence[Tensor]) -> None:
    """Gives up shared copies; the last user's are dropped."""
    with _sharing:
        for weight in weights:
            copy = _shared[id(weight)]
            copy.num_users -= 1
            if not copy.num_users:
                del _shared[id(weight)]


def _forward(packed: PackedLinear, original: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    """Computes from the copy in inference mode, otherwise from the weights."""
    return packed(input) if torch.is_inference_mode_enabled() else original(input)


def _large_linears(model: nn.Module) -> list[nn.Linear]:
    return [
        module
        for module in model.modules()
        if type(module) is nn.Linear and module.weight.numel() >= MIN_WEIGHTS
    ]
