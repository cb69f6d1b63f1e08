"""Loads a checkpoint's weights into the model that they were trained from, without the optimizer's
state: the model is not trained further. (Training resumes by `Policy.load_state_dict`.)
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ajet.core.checkpoint.checkpoint import WEIGHT_PREFIX, read_weights
from ajet.core.checkpoint.manifest import WeightMismatch, naming_checkpoint
from ajet.core.ranks.shards import copy_tensor
from ajet.core.update.lora import with_lora
from ajet.core.update.settings import LoraSettings


def overlay_checkpoint(model: nn.Module, path: Path, lora: LoraSettings | None) -> None:
    """Copies the weights at `path` into `model`, in place; adapters go into its own modules."""
    trained = with_lora(model, lora) if lora else model
    with naming_checkpoint(path):
        load_weights(trainable(trained), read_weights(path))


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the weights that a checkpoint holds."""
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def has_more_than_weights(model: nn.Module) -> bool:
    """Tells whether the model saves buffers too: a router's correction, a layer's scale."""
    saved = model.state_dict(keep_vars=True).values()
    return not all(isinstance(tensor, nn.Parameter) for tensor in saved)


def train_every_embedding(model: nn.Module) -> None:
    """Clears `padding_idx`: torch drops its gradient, but the id may occur in text."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = None


def check_fits(name: str, saved: Tensor | None, target: Tensor) -> None:
    """Raises `WeightMismatch` unless a checkpoint's tensor can be copied into `target`."""
    if saved is None:
        problem = "missing"
    elif saved.shape != target.shape:
        problem = f"of shape {tuple(saved.shape)}"
    elif not saved.is_floating_point():
        problem = f"of type {saved.dtype}"
    else:
        return
    raise WeightMismatch(f"{name} {tuple(target.shape)} is {problem}")


@torch.no_grad()
def load_weights(
    weights: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], prefix: str = WEIGHT_PREFIX
) -> None:
    """Copies a checkpoint's tensors (under `prefix`) into `weights`, all of them or none.

    Raises `WeightMismatch` if a weight is missing, or if the checkpoint has others: a part of what
    was trained would be lost."""
    for name, weight in weights.items():
        check_fits(name, tensors.get(f"{prefix}{name}"), weight)
    for name in tensors:
        if name.startswith(prefix) and name.removeprefix(prefix) not in weights:
            raise WeightMismatch(f"{name.removeprefix(prefix)} is not one of its weights")
    for name, weight in weights.items():
        copy_tensor(weight, tensors[f"{prefix}{name}"])
