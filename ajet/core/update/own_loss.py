"""The user's own policy loss, a function or a class, named in the YAML as file.py->name. An error
ends the run with one line.
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
from ajet.core.errors import ConfigError, WrongKind
from ajet.core.errors.codes import Code
from ajet.core.losses import find_loss
from ajet.core.losses.mini_batch_tokens import MiniBatchTokens, TokenNumbers
from ajet.core.losses.token_loss import LossInputs, PolicyLoss, TokenLoss
from ajet.core.update.settings import UpdateSettings
from ajet.core.user_code.importing import ARROW, construct, load_attribute, run_user_code

WHERE = "ajet.trainer_common.algorithm.policy_loss"


def own_loss(config: AjetConfig) -> PolicyLoss | None:
    """Loads the loss that the config names: the user's function or class, or a registered one.

    A function gets the tokens of a micro-batch (`LossInputs`) and `UpdateSettings`, and returns the
    loss of each token, or a `TokenLoss`. A class is made as Class(config); its methods `of_tokens`
    and `of_mini_batch` are the two functions of a `PolicyLoss`."""
    spec = config.ajet.trainer_common.algorithm.policy_loss
    if ARROW not in spec:
        return find_loss(spec)
    loss = load_attribute(spec, base_dirs=config.base_dirs, location=WHERE)
    # needs_advantage=False: whether a token with advantage 0 has a gradient is not known.
    if inspect.isfunction(loss):
        return PolicyLoss(OwnTokens(loss), needs_advantage=False)
    if not inspect.isclass(loss):
        raise WrongKind(f"{WHERE}: {spec!r}: name a function or a class")
    instance: Any = construct(loss, config, WHERE)
    if not callable(getattr(instance, "of_tokens", None)):
        raise ConfigError(
            f"{WHERE}: {spec!r}: the class has no of_tokens(self, tokens, settings)",
            code=Code.OWN_METHOD_MISSING,
        )
    if not callable(getattr(instance, "of_mini_batch", None)):
        return PolicyLoss(OwnTokens(instance.of_tokens), needs_advantage=False)
    numbers = OwnMiniBatch(instance.of_mini_batch)
    return PolicyLoss(OwnTokens(instance.of_tokens), numbers, "mini_batch", needs_advantage=False)


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """Calls the user's function of a micro-batch's tokens and checks what it returns."""

    function: Callable[..., Any]

    def __call__(self, tokens: LossInputs, settings: UpdateSettings) -> TokenLoss:
        result = run_user_code(partial(self.function, tokens, settings), WHERE)
        token_loss = result if isinstance(result, TokenLoss) else None
        loss_M = result if token_loss is None else token_loss.loss_M
        shape = tuple(tokens.logprobs_M.shape)
        if not isinstance(loss_M, Tensor) or tuple(loss_M.shape) != shape:
            is_tensor = isinstance(loss_M, Tensor)
            description = (
                f"a tensor of {tuple(loss_M.shape)}" if is_tensor else type(loss_M).__name__
            )
            raise _misfit(
                f"it returned {description}: return a tensor of {shape}, a loss for each token"
            )
        if torch.is_grad_enabled() and len(loss_M) and not loss_M.requires_grad:
            raise _misfit("its loss has no gradient: compute it from tokens.logprobs_M")
        return token_loss or TokenLoss(loss_M, tokens.ratio_M.detach())


@dataclass(frozen=True, slots=True)
class OwnMiniBatch:
    """Calls the user's function of a mini-batch's tokens and checks what it returns."""

    function: Callable[..., Any]

    def __call__(self, tokens: MiniBatchTokens, settings: UpdateSettings) -> TokenNumbers:
        result = run_user_code(partial(self.function, tokens, settings), WHERE)
        if not isinstance(result, dict):
            raise _misfit(f"of_mini_batch returned {type(result).__name__}, not a dict")
        shape = tokens.logprobs_M.shape
        numbers: dict[str, Any] = {}
        for name, values in result.items():
            values_M = np.asarray(values)
            if values_M.shape != shape or values_M.dtype.kind not in "fiub":
                raise _misfit(
                    f"of_mini_batch's {name!r} is {values_M.dtype} of {values_M.shape}: "
                    f"give a number for each token, {shape}"
                )
            numbers[str(name)] = values_M.astype(np.float64)
        return numbers


def _misfit(text: str) -> ConfigError:
    return ConfigError(f"{WHERE}: {text}", code=Code.OWN_RESULT)
