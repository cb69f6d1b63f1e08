"""The user's own policy loss, named in the YAML as file.py->name.

    policy_loss: my_loss.py->loss

    def loss(tokens, settings):
        return -tokens.advantages_M * tokens.ratio_M

A function gets the tokens of a micro-batch (`LossInputs`: tensors with one entry for each trained
token, log-probabilities in nats, advantages without a unit) and `UpdateSettings`. It returns the
loss of each token, a tensor with the gradient of `logprobs_M`, or a `TokenLoss` with ratios and
cuts for the metrics. loss.py weighs and adds the tokens up.

A class is made as Class(config). Its `of_tokens(tokens, settings)` is that function; where it has
an `of_mini_batch(tokens, settings)` too, this gets all trained tokens of the mini-batch
(`MiniBatchTokens`) before the gradient and returns arrays by name with a number for each, which
`of_tokens` finds in `tokens.mini_batch`. Every trained token is computed, also where its advantage
is 0. A result that does not fit, and whatever they raise, ends
the run with one line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ajet.core.config import AjetConfig
from ajet.core.error_codes import Code
from ajet.core.errors import ConfigError
from ajet.core.importing import ARROW, construct, load_attribute, run_user_code
from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.update.settings import UpdateSettings

WHERE = "ajet.trainer_common.algorithm.policy_loss"


def own_loss(config: AjetConfig) -> PolicyLoss | None:
    """Loads the loss that the config names; None where it names one of ajet's."""
    spec = config.ajet.trainer_common.algorithm.policy_loss
    if ARROW not in spec:
        return None
    found = load_attribute(spec, base_dirs=config.base_dirs, location=WHERE)
    if inspect.isfunction(found):
        return PolicyLoss(OwnTokens(found), needs_advantage=False)
    if not inspect.isclass(found):
        raise ConfigError(
            f"{WHERE}: {spec!r}: name a function or a class", code=Code.OWN_WRONG_KIND
        )
    made: Any = construct(found, config, WHERE)
    if not callable(getattr(made, "of_tokens", None)):
        raise ConfigError(
            f"{WHERE}: {spec!r}: the class has no of_tokens(self, tokens, settings)",
            code=Code.OWN_METHOD_MISSING,
        )
    if not callable(getattr(made, "of_mini_batch", None)):
        return PolicyLoss(OwnTokens(made.of_tokens), needs_advantage=False)
    numbers = OwnMiniBatch(made.of_mini_batch)
    return PolicyLoss(OwnTokens(made.of_tokens), numbers, "mini_batch", needs_advantage=False)


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """Calls the user's function of a micro-batch's tokens and checks what it returns."""

    function: Callable[..., Any]

    def __call__(self, tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
        result = run_user_code(partial(self.function, tokens, settings), WHERE)
        found = result if isinstance(result, TokenLoss) else None
        loss_M = result if found is None else found.loss_M
        wanted = tuple(tokens.logprobs_M.shape)
        if not isinstance(loss_M, Tensor) or tuple(loss_M.shape) != wanted:
            is_tensor = isinstance(loss_M, Tensor)
            given = f"a tensor of {tuple(loss_M.shape)}" if is_tensor else type(loss_M).__name__
            raise _misfit(
                f"it returned {given}: return a tensor of {wanted}, a loss for each token"
            )
        if torch.is_grad_enabled() and len(loss_M) and not loss_M.requires_grad:
            raise _misfit("its loss has no gradient: compute it from tokens.logprobs_M")
        return found or TokenLoss(loss_M, tokens.ratio_M.detach())


@dataclass(frozen=True, slots=True)
class OwnMiniBatch:
    """Calls the user's function of a mini-batch's tokens and checks what it returns."""

    function: Callable[..., Any]

    def __call__(self, tokens: MiniBatchTokens, settings: UpdateSettings) -> TokenNumbers:
        result = run_user_code(partial(self.function, tokens, settings), WHERE)
        if not isinstance(result, dict):
            raise _misfit(f"of_mini_batch returned {type(result).__name__}, no dict")
        wanted = tokens.logprobs_M.shape
        numbers: dict[str, Any] = {}
        for name, values in result.items():
            values_M = np.asarray(values)
            if values_M.shape != wanted or values_M.dtype.kind not in "fiub":
                raise _misfit(
                    f"of_mini_batch's {name!r} is {values_M.dtype} of {values_M.shape}: "
                    f"give a number for each token, {wanted}"
                )
            numbers[str(name)] = values_M.astype(np.float64)
        return numbers


def _misfit(text: str) -> ConfigError:
    return ConfigError(f"{WHERE}: {text}", code=Code.OWN_RESULT)
