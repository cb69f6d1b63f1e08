"""Several adapters over one base: models that share its tensors, and their part of a checkpoint.
Each adapter has a separate module tree over the same base tensors, so an update of one cannot reach
another. A sharded base is held by its modules, so there all are in one module tree (lora.py).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from torch import Tensor, nn

from ajet.core.checkpoint.checkpoint import read_weights
from ajet.core.checkpoint.manifest import WeightMismatch, naming_checkpoint
from ajet.core.losses.token_loss import PolicyLoss
from ajet.core.ranks.ranks import ONE_RANK, Ranks
from ajet.core.update.lora import with_lora
from ajet.core.update.policy import Policy
from ajet.core.update.settings import LoraSettings, UpdateSettings
from ajet.core.update.weights import load_weights, trainable


def sharing_weights(model: nn.Module) -> nn.Module:
    """Returns a copy of the model's modules over the same parameters and buffers."""
    # deepcopy uses the objects in its memo as copies, so the tensors are shared.
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


@dataclass(frozen=True)
class AdapterModels:
    """A model for each adapter, and the trained weights of each, by the adapters' names."""

    models: Mapping[str, nn.Module]
    trained: Mapping[str, Mapping[str, nn.Parameter]]

    @classmethod
    def over(cls, model: nn.Module, lora: LoraSettings) -> AdapterModels:
        """Makes untrained adapters over the weights of `model`."""
        models = {name: sharing_weights(model) for name in lora.adapters}
        trained = {
            name: trainable(with_lora(module, lora.for_adapter(name)))
            for name, module in models.items()
        }
        return cls(models, trained)

    def weights(self) -> dict[str, Tensor]:
        """Returns all adapters' weights, under the names of `sent_weights`."""
        return dict(sent_weights({name: weights.items() for name, weights in self.trained.items()}))


def adapter_policies(
    model: nn.Module,
    settings: UpdateSettings,
    ranks: Ranks = ONE_RANK,
    loss: PolicyLoss | None = None,
) -> dict[str, Policy]:
    """Makes a policy for each of the settings' adapters, over the weights of `model`. With one rank
    `model` is not changed; with several it is sharded and gets all adapters."""
    assert settings.lora is not None
    loras = {name: settings.lora.for_adapter(name) for name in settings.lora.adapters}
    first, *more_loras = loras.values()
    if ranks.compute_dtype is not None:
        first_settings = replace(settings, lora=first)
        policy = Policy(model, first_settings, ranks, loss, more_loras=more_loras)
        return dict(zip(loras, policy.policies(), strict=True))
    return {
        name: Policy(sharing_weights(model), replace(settings, lora=lora), ranks, loss)
        for name, lora in loras.items()
    }


def sent_weights(
    trained: Mapping[str, Iterable[tuple[str, Tensor]]],
) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights of several adapters for an engine, which has the base itself."""
    for adapter, weights in trained.items():
        for name, weight in weights:
            yield f"{adapter}.{name}", weight.detach()


def adapter_models(model: nn.Module, checkpoint: Path, lora: LoraSettings) -> dict[str, nn.Module]:
    """Returns a model for each adapter of a checkpoint, over the weights of `model`."""
    with naming_checkpoint(checkpoint):
        tensors = read_weights(checkpoint)
        check_names(tensors, lora.adapters)
        adapters = AdapterModels.over(model, lora)
        for name, weights in adapters.trained.items():
            load_weights(weights, adapter_tensors(tensors, name))
    return dict(adapters.models)


def add_adapter_name(tensors: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """Returns an adapter's tensors under their names in a checkpoint of several: model.NAME
    becomes model.ADAPTER.NAME."""
    renamed = {}
    for name, tensor in tensors.items():
        prefix, _, rest = name.partition(".")
        renamed[f"{prefix}.{adapter}.{rest}"] = tensor
    return renamed


def adapter_tensors(tensors: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """Reverses `add_adapter_name` for one adapter of several."""
    selected = {}
    for name, tensor in tensors.items():
        prefix, owner, rest = name.split(".", 2)
        if owner == adapter:
            selected[f"{prefix}.{rest}"] = tensor
    return selected


def check_names(tensors: Iterable[str], adapters: Iterable[str]) -> None:
    """Raises `WeightMismatch` unless a checkpoint's tensors belong to exactly these adapters."""
    saved, names = {name.split(".", 2)[1] for name in tensors}, set(adapters)
    if odd := sorted(saved ^ names):
        problem = "one of its adapters" if odd[0] in saved else "missing in it"
        raise WeightMismatch(
            f"adapter {odd[0]} is {problem}, and ajet.trainer_common.lora.adapters "
            f"names {', '.join(sorted(names)) or 'none'}"
        )
