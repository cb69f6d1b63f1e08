"""The policy's weights for an engine: whole, with the model's own names, in a fixed order. Adapters
are merged into the weights that they adapt; or they are sent alone, to an engine that merges them
itself (core/weight_sync/adapters.py). A server that sees images has the whole multimodal
checkpoint, and gets its names and the vision tower (`is_whole`).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ajet.core.model.decoder import unwrapped
from ajet.core.model.vision import TOWER, vision_of
from ajet.core.ranks.shards import full_tensor
from ajet.core.weight_sync.adapters import FACTOR_A, FACTOR_B, Adapters, with_adapter
from ajet.core.weight_sync.manifest import Manifest, TensorInfo

BASE_WEIGHT = ".base_layer.weight"


@torch.no_grad()
def engine_weights(
    model: nn.Module,
    dtype: torch.dtype | None,
    *,
    is_base: bool = False,
    is_whole: bool = False,
) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights in `dtype`, or each in its own; `is_base` leaves adapters out. All ranks
    must iterate to the end, because they gather each tensor together."""
    modules = dict(unwrapped(model).named_modules())
    named = _named_by(model, is_whole)
    for name, tensor in _tensors_of(model, is_whole).items():
        if name.endswith(BASE_WEIGHT) and not is_base:
            # Merged in the base's dtype, then rounded once by the cast.
            whole = full_tensor(tensor)
            layer: Any = modules[name.removesuffix(BASE_WEIGHT)]
            for adapter in layer.active_adapters:
                whole = _merged(whole, layer, adapter)
            whole = whole.to(dtype or whole.dtype)
        elif tensor.dtype.is_floating_point:
            # A shard is cast before it travels, which halves what the ranks send.
            whole = full_tensor(tensor.to(dtype or tensor.dtype))
        else:
            whole = tensor
        yield named(name), whole


def engine_shapes(model: nn.Module, *, is_whole: bool = False) -> dict[str, tuple[int, ...]]:
    """Returns the names and shapes of what `engine_weights` yields; nothing is gathered."""
    named, tensors = _named_by(model, is_whole), _tensors_of(model, is_whole)
    return {named(name): tuple(tensor.shape) for name, tensor in tensors.items()}


@torch.no_grad()
def adapter_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the two factors of each adapter, in the dtype in which they are trained."""
    for name, layer in _adapted_layers(model).items():
        (adapter,) = layer.active_adapters
        yield name + FACTOR_A, full_tensor(layer.lora_A[adapter].weight.detach())
        yield name + FACTOR_B, full_tensor(layer.lora_B[adapter].weight.detach())


def describe_adapters(model: nn.Module, dtype: torch.dtype | None) -> Adapters | str:
    """Describes the model's adapters for engines that have its base weights in `dtype`, or returns
    in one line why they cannot be sent alone. All ranks call it: the base's checksum is computed
    from gathered weights."""
    layers = _adapted_layers(model)
    trained = sum(weight.requires_grad for weight in model.parameters())
    # Two factors a layer; anything else that is trained would be missing in the engine.
    if trained != 2 * len(layers) or not all(map(_is_plain, layers.values())):
        return "some adapters are not on plain linear layers"
    if len({layer.base_layer.weight.dtype for layer in layers.values()}) != 1:
        return "the adapted weights have several dtypes"
    scalings = {
        name: float(layer.scaling[layer.active_adapters[0]]) for name, layer in layers.items()
    }
    some: Any = next(iter(layers.values()))
    sum_dtype = str(some.base_layer.weight.dtype).removeprefix("torch.")
    base = engine_weights(model, dtype, is_base=True)
    infos = tuple(TensorInfo.of(name, tensor) for name, tensor in base)
    return Adapters(scalings, sum_dtype, Manifest(0, infos).checksum)


def _named_by(model: nn.Module, is_whole: bool) -> Callable[[str], str]:
    """Returns what gives a weight of the model, or of the tower, the name that engines know."""
    if not is_whole:
        return _engine_name
    vision = vision_of(model)
    assert vision is not None
    return lambda name: vision.whole_name(_engine_name(name))


def _tensors_of(model: nn.Module, is_whole: bool = False) -> dict[str, Tensor]:
    """Returns what is saved of the base model, in the order of its modules, tied tensors once; then
    the frozen tower, if it `is_whole`."""
    by_id: dict[int, tuple[str, Tensor]] = {}
    # With keep_vars, tied weights are one object; without, each name has a detached view.
    for name, tensor in unwrapped(model).state_dict(keep_vars=True).items():
        if "lora_" not in name:
            by_id.setdefault(id(tensor), (name, tensor.detach()))
    vision = vision_of(model)
    if is_whole and vision is not None and not vision.is_trained:
        for name, tensor in vision.tower().state_dict().items():
            by_id.setdefault(id(tensor), (f"{TOWER}.{name}", tensor))
    return dict(by_id.values())


def _merged(whole: Tensor, layer: Any, adapter: str) -> Tensor:
    """Returns a gathered weight with one of its layer's adapters added."""
    if not _is_plain(layer):
        return whole + full_tensor(layer.get_delta_weight(adapter)).to(whole.dtype)
    factor_a = full_tensor(layer.lora_A[adapter].weight)
    factor_b = full_tensor(layer.lora_B[adapter].weight)
    return with_adapter(whole, factor_a, factor_b, layer.scaling[adapter])


def _is_plain(layer: Any) -> bool:
    """Tells whether peft would merge this layer exactly as `with_adapter` does: a linear layer
    with one pair of factors and no variant of LoRA."""
    return (
        isinstance(layer.base_layer, nn.Linear)
        and len(layer.active_adapters) == 1
        and set(layer.lora_A) == set(layer.active_adapters)
        and not any(layer.use_dora.values())
        and not layer.fan_in_fan_out
    )


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Returns peft's layers by the names of the weights that they adapt, in the weights' order."""
    base = unwrapped(model)
    modules: dict[str, Any] = dict(base.named_modules())
    return {
        _engine_name(name): modules[name.removesuffix(BASE_WEIGHT)]
        for name, _ in base.named_parameters()
        if name.endswith(BASE_WEIGHT)
    }


def _engine_name(name: str) -> str:
    return name.replace(".base_layer.", ".")
