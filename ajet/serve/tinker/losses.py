"""The losses of Tinker's API, as its documentation defines them: sums over tokens. They differ from
core/losses in bounds (of the ratio, not around 1), in denominators (none), and in what an episode
is (a datum).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ajet.core.workflow.gateway.request import RequestError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What a loss reads for each target of a micro-batch [M]. Only `logprobs_M` has a gradient;
    `datum_M` are the numbers of the targets' data, counted from 0 within the micro-batch. Below,
    p and q are the probabilities of the policy and of the input `logprobs`, r = p / q, A the
    `advantages`, w the `weights`, and sg stops the gradient."""

    logprobs_M: Tensor
    datum_M: Tensor
    tensors: Mapping[str, Tensor]
    config: Mapping[str, float]

    @property
    def advantages_M(self) -> Tensor:
        return self.tensors["advantages"]

    @property
    def log_ratio_M(self) -> Tensor:
        return self.logprobs_M - self.tensors["logprobs"]

    def clip(self, ratio_M: Tensor) -> Tensor:
        return ratio_M.clamp(self.config["clip_low_threshold"], self.config["clip_high_threshold"])


def cross_entropy(tokens: TokenInputs) -> Tensor:
    """Returns -w log p."""
    return -tokens.logprobs_M * tokens.tensors["weights"]


def importance_sampling(tokens: TokenInputs) -> Tensor:
    """Returns -r A."""
    return -tokens.log_ratio_M.exp() * tokens.advantages_M


def ppo(tokens: TokenInputs) -> Tensor:
    return _clipped(tokens, tokens.log_ratio_M.exp())


def cispo(tokens: TokenInputs) -> Tensor:
    """Returns -sg(clip(r, low, high)) A log p."""
    weight_M = tokens.clip(tokens.log_ratio_M.detach().exp())
    return -weight_M * tokens.logprobs_M * tokens.advantages_M


def dro(tokens: TokenInputs) -> Tensor:
    """Returns -(A log p - beta/2 (log r)^2)."""
    penalty_M = 0.5 * tokens.config["beta"] * tokens.log_ratio_M.square()
    return penalty_M - tokens.logprobs_M * tokens.advantages_M


def gspo(tokens: TokenInputs) -> Tensor:
    """Returns ppo's with s for r: sg(s) p / sg(p), where log s is the mean of log r over the
    datum's tokens in sequence_ratio_mask; a datum without one has ratio 1."""
    import torch

    is_in_M = (tokens.tensors["sequence_ratio_mask"] != 0).to(tokens.logprobs_M.dtype)
    sums = torch.zeros(
        int(tokens.datum_M.max()) + 1, dtype=is_in_M.dtype, device=tokens.datum_M.device
    )
    counts = sums.index_add(0, tokens.datum_M, is_in_M)
    log_ratio_M = torch.where(is_in_M != 0, tokens.log_ratio_M.detach(), 0.0)
    means = sums.index_add(0, tokens.datum_M, log_ratio_M) / counts.clamp(min=1)
    gradient_M = tokens.logprobs_M - tokens.logprobs_M.detach()  # 0 in value
    return _clipped(tokens, (means[tokens.datum_M] + gradient_M).exp())


def _clipped(tokens: TokenInputs, ratio_M: Tensor) -> Tensor:
    """Returns -min(r A, clip(r, low, high) A)."""
    import torch

    advantages_M = tokens.advantages_M
    return -torch.minimum(ratio_M * advantages_M, tokens.clip(ratio_M) * advantages_M)


@dataclass(frozen=True, slots=True)
class TinkerLoss:
    """A loss, the tensors of each datum that it reads in addition to `target_tokens`, with the
    value of those that may be missing, and its settings with their defaults. None must be given."""

    of_tokens: Callable[[TokenInputs], Tensor]
    inputs: Mapping[str, float | None]
    config: Mapping[str, float | None]


_SAMPLED: Mapping[str, float | None] = {"logprobs": None, "advantages": None}


def _bounds(low: float | None, high: float | None) -> dict[str, float | None]:
    return {"clip_low_threshold": low, "clip_high_threshold": high}


LOSSES: Mapping[str, TinkerLoss] = {
    "cross_entropy": TinkerLoss(cross_entropy, {"weights": 1.0}, {}),
    "importance_sampling": TinkerLoss(importance_sampling, _SAMPLED, {}),
    "ppo": TinkerLoss(ppo, _SAMPLED, _bounds(0.8, 1.2)),
    "cispo": TinkerLoss(cispo, _SAMPLED, _bounds(0.0, 4.0)),
    "dro": TinkerLoss(dro, _SAMPLED, {"beta": None}),
    # The documentation gives no default bounds.
    "gspo": TinkerLoss(gspo, {**_SAMPLED, "sequence_ratio_mask": None}, _bounds(None, None)),
}


def find_loss(name: str) -> TinkerLoss:
    if name not in LOSSES:
        advice = " (use importance_sampling)" if name == "stable_reinforce" else ""
        raise RequestError(f"loss {name!r} is not served{advice}: there is {', '.join(LOSSES)}")
    return LOSSES[name]


def settings_of(name: str, config: Mapping[str, float]) -> dict[str, float]:
    """Returns the loss's settings, with defaults for those that the request leaves out."""
    defaults = find_loss(name).config
    for key, value in config.items():
        if key not in defaults:
            known = ", ".join(defaults) or "none"
            raise RequestError(f"loss {name}: loss_fn_config has no {key}: there is {known}")
        if not math.isfinite(value):
            raise RequestError(f"loss {name}: {key} is {value}")
    settings = {key: config.get(key, default) for key, default in defaults.items()}
    for key, value in settings.items():
        if value is None:
            raise RequestError(f"loss {name}: give {key} in loss_fn_config; it has no default here")
    return {key: value for key, value in settings.items() if value is not None}
