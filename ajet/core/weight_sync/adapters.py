"""LoRA adapters that are sent without the base weights, which the receiver has. The trainer uses
the same `with_adapter` when it publishes whole weights, so both have the same bits. This file
imports only torch: vLLM's worker loads it by path, without the rest of ajet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FACTOR_A, FACTOR_B = ".lora_A", ".lora_B"  # after a weight's name: [rank, in] and [out, rank]
Shapes = Mapping[str, tuple[int, ...]]
Factors = Mapping[str, "tuple[Tensor, Tensor]"]
"""The two factors A and B of each adapted weight."""


class AdaptersError(ValueError):
    """Raised when adapters do not fit the model; the message is one line."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Describes the adapters of a run."""

    scalings: Mapping[str, float]
    """The scaling of each adapted weight, by the weight's name."""
    sum_dtype: str
    """The dtype in which an adapter is added to the base."""
    base_checksum: str
    """The checksum of all base weights."""

    def dumps(self) -> str:
        """Returns JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Adapters:
        """Reads the text of `dumps`."""
        return cls(**json.loads(text))

    def check(self, sent: Shapes, base: Shapes) -> None:
        """Raises AdaptersError unless the sent tensors are exactly the factors of all adapted
        weights, with shapes that fit the base."""
        expected = {name + factor for name in self.scalings for factor in (FACTOR_A, FACTOR_B)}
        if missing := sorted(expected - sent.keys()):
            raise AdaptersError(f"missing {missing[0]}")
        if unknown := sorted(sent.keys() - expected):
            raise AdaptersError(f"{unknown[0]} is not an adapter of this run")
        for name in self.scalings:
            if name not in base:
                raise AdaptersError(f"the model has no tensor {name} to add the adapter to")
            shape_a, shape_b = sent[name + FACTOR_A], sent[name + FACTOR_B]
            # B [out, rank] @ A [rank, in] must have the base's shape.
            if shape_a[:1] != shape_b[1:] or (*shape_b[:1], *shape_a[1:]) != base[name]:
                raise AdaptersError(
                    f"{name} is {list(base[name])}, its adapter {list(shape_b)} times "
                    f"{list(shape_a)}"
                )

    def factors(self, tensors: Mapping[str, Tensor]) -> Factors:
        """Returns the factors (A, B) by the names of the weights."""
        return {
            name: (tensors[name + FACTOR_A], tensors[name + FACTOR_B]) for name in self.scalings
        }

    def add(self, name: str, base: Tensor, factors: Factors) -> Tensor:
        """Returns a base weight with its adapter added, in the base's dtype and on the factors'
        device; a weight without an adapter is returned unchanged."""
        import torch

        if name not in factors:
            return base
        factor_a, factor_b = factors[name]
        wide = base.to(factor_a.device, getattr(torch, self.sum_dtype))
        return with_adapter(wide, factor_a, factor_b, self.scalings[name]).to(base.dtype)


def with_adapter(base: Tensor, factor_a: Tensor, factor_b: Tensor, scaling: float) -> Tensor:
    """Returns `base + B @ A * scaling` in the dtype of `base`."""
    return base + ((factor_b @ factor_a) * scaling).to(base.dtype)
