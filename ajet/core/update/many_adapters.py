"""Several adapters over one base: models that share its tensors, and their part of a checkpoint.

    base ──> sharing_weights ──> a module tree of its own for each adapter, over the same tensors

    model.pro.NAME   optimizer.pro.NAME     a checkpoint's tensors of adapter "pro"
    model.con.NAME   optimizer.con.NAME     and of "con"

Each adapter is put into modules of its own, so an update of one can reach no other: they have only
the frozen base in common, which is in memory once. A base that is sharded over ranks is held by its
modules, not by its tensors, so there all adapters are in one module tree (lora.py). Not covered:
computing rows of several adapters in one pass.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from torch import Tensor, nn

from ajet.core.losses.token_loss import PolicyLoss
from ajet.core.update.checkpoint import read_weights
from ajet.core.update.lora import with_lora
from ajet.core.update.mismatch import WeightMismatch, of_checkpoint
from ajet.core.update.policy import Policy
from ajet.core.update.ranks import ONE_RANK, Ranks
from ajet.core.update.settings import LoraSettings, UpdateSettings
from ajet.core.update.weights import load_weights, trainable


def sharing_weights(model: nn.Module) -> nn.Module:
    """Returns a copy of the model's modules whose parameters and buffers are the model's own."""
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)


@dataclass(frozen=True)
class AdapterModels:
    """Holds a model for each adapter, and the weights of each adapter by the model's name."""

    models: Mapping[str, nn.Module]
    trained: Mapping[str, Mapping[str, nn.Parameter]]

    @classmethod
    def over(cls, model: nn.Module, lora: LoraSettings) -> AdapterModels:
        """Makes them over the weights of `model`, with adapters that have learnt nothing."""
        models = {name: sharing_weights(model) for name in lora.adapters}
        trained = {
            name: trainable(with_lora(own, lora.of_adapter(name))) for name, own in models.items()
        }
        return cls(models, trained)

    def weights(self) -> dict[str, Tensor]:
        """Returns all adapters' weights, under the names of `sent_weights`."""
        return dict(sent_weights({name: own.items() for name, own in self.trained.items()}))


def adapter_policies(
    model: nn.Module,
    settings: UpdateSettings,
    ranks: Ranks = ONE_RANK,
    loss: PolicyLoss | None = None,
) -> dict[str, Policy]:
    """Makes a policy for each of the settings' adapters, over the weights of `model`. On one rank
    the model itself stays as it is, without any adapter; over several it is sharded."""
    assert settings.lora is not None
    loras = {name: settings.lora.of_adapter(name) for name in settings.lora.adapters}
    first, *others = loras.values()
    if ranks.compute_dtype is not None:
        own = replace(settings, lora=first)
        made = Policy(model, own, ranks, loss, beside=others)
        return dict(zip(loras, made.policies(), strict=True))
    return {
        name: Policy(sharing_weights(model), replace(settings, lora=lora), ranks, loss)
        for name, lora in loras.items()
    }


def sent_weights(
    trained: Mapping[str, Iterable[tuple[str, Tensor]]],
) -> Iterator[tuple[str, Tensor]]:
    """Yields the weights of several adapters as they travel: an engine has the base itself."""
    for adapter, weights in trained.items():
        for name, weight in weights:
            yield f"{adapter}.{name}", weight.detach()


def adapter_models(model: nn.Module, checkpoint: Path, lora: LoraSettings) -> dict[str, nn.Module]:
    """Returns a model for each adapter of a checkpoint, over the weights of `model`."""
    with of_checkpoint(checkpoint):
        tensors = read_weights(checkpoint)
        check_names(tensors, lora.adapters)
        made = AdapterModels.over(model, lora)
        for name, weights in made.trained.items():
            load_weights(weights, of_adapter(tensors, name))
    return dict(made.models)


def named_for(tensors: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """Returns an adapter's tensors under the names that they have beside those of others."""
    parts = ((*name.partition("."), tensor) for name, tensor in tensors.items())
    return {f"{kind}.{adapter}.{rest}": tensor for kind, _, rest, tensor in parts}


def of_adapter(tensors: Mapping[str, Tensor], adapter: str) -> dict[str, Tensor]:
    """Returns the tensors that `named_for` was given for this adapter."""
    parts = ((*name.split(".", 2), tensor) for name, tensor in tensors.items())
    return {f"{kind}.{rest}": tensor for kind, name, rest, tensor in parts if name == adapter}


def check_names(tensors: Iterable[str], adapters: Iterable[str]) -> None:
    """Raises `WeightMismatch` unless a checkpoint's tensors are those of these adapters."""
    saved, wanted = {name.split(".", 2)[1] for name in tensors}, set(adapters)
    if odd := sorted(saved ^ wanted):
        where = "one of its adapters" if odd[0] in saved else "missing in it"
        raise WeightMismatch(
            f"adapter {odd[0]} is {where}, and ajet.trainer_common.lora.adapters "
            f"names {', '.join(sorted(wanted)) or 'none'}"
        )
