"""Packed copies of the large linear layers of any model on a CPU.

For models that packed_decoder.py does not know. The model calls its `nn.Linear` layers as before,
but in the engine's thread, which runs under `torch.inference_mode`, they compute from the copies.

    weights.pack()      copies the weights that are not packed
    weights.free()      drops the copies

Adapters over one base are separate modules over the same tensors, so the copies of tensors that are
not trained are shared by all models in the process.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ajet.core.model.decoder import is_sharded
from ajet.engines.packed_decoder import DTYPES, MIN_WEIGHTS, PackedLinear, has_onednn


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
    """Packed copies of a model's large linear layers."""

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
                packed = _shared_copy(layer)
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


def _shared_copy(layer: nn.Linear) -> PackedLinear:
    weight = layer.weight
    with _sharing:
        copy = _shared.get(id(weight))
        if copy is None:
            copy = _shared[id(weight)] = SharedCopy(weight, PackedLinear.of(layer))
        copy.num_users += 1
        return copy.packed


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
