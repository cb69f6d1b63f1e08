"""LoRA adapters that travel alone: the receiver adds them to base weights that it has itself.

    model.layers.0.self_attn.q_proj.weight.lora_A   (rank, in)     two tensors for each adapted
    model.layers.0.self_attn.q_proj.weight.lora_B   (out, rank)    weight, in the type of training

    base + (B @ A) * scaling  ->  the weight, in the type of the base

The trainer adds adapters by the same function where it publishes whole weights, so both have the
same bits. This file imports torch alone: vLLM's worker loads it by its path
(servers/worker_extension/), where ajet's other packages are not to be found.

Not covered: which layers have such adapters (core/update/engine_weights.py), quantised bases.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FACTOR_A, FACTOR_B = ".lora_A", ".lora_B"
Shapes = Mapping[str, tuple[int, ...]]
Factors = Mapping[str, "tuple[Tensor, Tensor]"]
"""The two factors A and B of each adapted weight."""


class AdaptersError(ValueError):
    """Says in one line why adapters do not fit."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Describes the adapters of a run: the scaling of each adapted weight, the type in which an
    adapter is added, and the checksum of all base weights."""

    scalings: Mapping[str, float]
    sum_dtype: str
    base_checksum: str

    def dumps(self) -> str:
        """Returns JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Adapters:
        """Reads the text of `dumps`."""
        return cls(**json.loads(text))

    def check(self, sent: Shapes, base: Shapes) -> None:
        """Checks that tensors of these names and shapes are the factors of every adapted weight,
        and fit the base weights."""
        expected = {name + factor for name in self.scalings for factor in (FACTOR_A, FACTOR_B)}
        if missing := sorted(expected - sent.keys()):
            raise AdaptersError(f"missing {missing[0]}")
        if unknown := sorted(sent.keys() - expected):
            raise AdaptersError(f"{unknown[0]} is no adapter of this run")
        for name in self.scalings:
            if name not in base:
                raise AdaptersError(f"the model has no tensor {name} to add the adapter to")
            of_a, of_b, base_shape = sent[name + FACTOR_A], sent[name + FACTOR_B], base[name]
            if of_a[:1] != of_b[1:] or (*of_b[:1], *of_a[1:]) != base_shape:
                raise AdaptersError(
                    f"{name} is {list(base_shape)}, its adapter {list(of_b)} times {list(of_a)}"
                )

    def factors(self, tensors: Mapping[str, Tensor]) -> Factors:
        """Returns the factors among these tensors by the names of the weights."""
        return {
            name: (tensors[name + FACTOR_A], tensors[name + FACTOR_B]) for name in self.scalings
        }

    def add(self, name: str, base: Tensor, factors: Factors) -> Tensor:
        """Returns a base weight with its adapter added, in the base's type and on the device of
        the factors; a weight without one is returned as it is."""
        import torch

        if name not in factors:
            return base
        factor_a, factor_b = factors[name]
        wide = base.to(factor_a.device, getattr(torch, self.sum_dtype))
        return with_adapter(wide, factor_a, factor_b, self.scalings[name]).to(base.dtype)


def with_adapter(base: Tensor, factor_a: Tensor, factor_b: Tensor, scaling: float) -> Tensor:
    """Returns `base` with an adapter added, in its type."""
    return base + ((factor_b @ factor_a) * scaling).to(base.dtype)
