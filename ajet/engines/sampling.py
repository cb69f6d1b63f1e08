"""Draws tokens, with their log-probabilities under the distribution they are drawn from.

logits -> grammar -> / temperature -> top-k cut -> top-p cut -> softmax -> inverse CDF at u
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ajet.core.errors import ModelError
from ajet.core.errors.codes import Code
from ajet.core.inference.endpoint import SamplingParams
from ajet.core.inference.grammar import Mask
from ajet.core.model.kernels.devices import decode_kernels_for
from ajet.core.model.kernels.functions import kernels_for
from ajet.core.model.precision import float64_device, to_wide_dtype
from ajet.core.model.transfer import uploaded

MAX_ELEMENTS = 16_000_000
"""The logits processed at a time: float64 copies of 256 rows of a large vocabulary take
gigabytes."""

MIN_VOCAB = 8192
"""The smallest vocabulary for the compiled kernel."""

DRAWS_AT_ONCE = 32
"""The number of draws whose `u` are computed and uploaded together."""

BLOCK = 256
"""The number of tokens per block in `inverse_cdf`."""

NO_MASKS: Mapping[int, Mask] = MappingProxyType({})


class Sampler:
    """Draws one token for each row of a batch at each call. `u` is a hash of (the request's seed,
    the number of the token), so a draw does not depend on the rest of the batch.

    Greedy rows (temperature 0) take the largest logit and report log-probabilities at temperature
    1, without cuts. Logits on MPS, which has no float64, are moved to the CPU. If no row has a cut,
    a compiled kernel draws on CUDA GPUs, and on CPUs from large vocabularies, with other rounding.
    """

    def __init__(
        self, params: Sequence[SamplingParams], device: torch.device, num_sampled: NDArray[np.int64]
    ) -> None:
        """`num_sampled` is the number of tokens that each row has sampled so far."""
        device = self._device = float64_device(device)
        temperatures = [p.temperature if p.temperature > 0 else 1.0 for p in params]
        greedy = [p.temperature <= 0 for p in params]
        self._seeds = np.array([p.seed & (2**64 - 1) for p in params], np.uint64)
        self._num_sampled = num_sampled
        self._num_drawn = 0
        self._u: Sequence[Tensor] = ()
        self._scaled = any(t != 1.0 for t in temperatures)
        self._temperature = uploaded(np.array(temperatures, np.float32), device).unsqueeze(1)
        self._scale = 1 / self._temperature.squeeze(1)
        self._any_greedy = any(greedy)
        self._greedy = uploaded(np.array(greedy, bool), device)
        # (top_k, top_p) of each row, (0, 1.0) for no cut.
        cuts = [(0, 1.0) if greedy[i] else (max(p.top_k, 0), p.top_p) for i, p in enumerate(params)]
        self._cut = any(k or top_p < 1.0 for k, top_p in cuts)
        top_k = np.array([k or 2**31 - 1 for k, _ in cuts], np.int64)
        self._top_k = uploaded(top_k, device).unsqueeze(1)
        top_p = np.array([top_p for _, top_p in cuts], np.float64)
        self._top_p = uploaded(top_p, device).unsqueeze(1)

    def draw(self, logits: Tensor, masks: Mapping[int, Mask] = NO_MASKS) -> Tensor:
        """Returns ``[3, R]`` in float64: the next token of each row, its log-probability, and the
        sum of the row's probabilities (in any scale), which `checked_draws` tests for
        finiteness. `masks` are the tokens that a row may draw, where it may not draw all; the
        logits of the others are overwritten."""
        logits = logits.to(self._device)
        if masks:
            restrict(logits, masks)
        u = self._next_u()
        cuda_kernels = None if self._cut else decode_kernels_for(logits)
        if cuda_kernels is not None:
            return cuda_kernels.draw(logits, self._scale, u, self._greedy)
        kernels = None if self._cut or logits.shape[1] < MIN_VOCAB else kernels_for(logits)
        if kernels is not None:
            return _joined(*kernels.draw(logits, self._scale, u, self._greedy))
        step = max(1, MAX_ELEMENTS // logits.shape[1])
        chunks = [
            self._draw(logits[at : at + step], u, slice(at, at + step))
            for at in range(0, len(logits), step)
        ]
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim=1)

    def _next_u(self) -> Tensor:
        """Returns the `u [R]` of this draw."""
        number = self._num_drawn % DRAWS_AT_ONCE
        if number == 0:
            draws = np.arange(self._num_drawn, self._num_drawn + DRAWS_AT_ONCE)
            counts = self._num_sampled + draws[:, None]
            num_rows = len(self._seeds)
            # Padded to an even number of rows, so that the numbers of each draw start at a multiple
            # of 16 bytes. Triton would compile its kernel again for other alignments.
            u = np.zeros((DRAWS_AT_ONCE, num_rows + num_rows % 2))
            u[:, :num_rows] = uniforms(self._seeds, counts)
            self._u = uploaded(u, self._device)[:, :num_rows].unbind()
        self._num_drawn += 1
        return self._u[number]

    def _draw(self, logits: Tensor, u: Tensor, at: slice) -> Tensor:
        logits = to_wide_dtype(logits)
        if self._scaled:
            logits = logits / self._temperature[at]
        if self._cut:
            logits = _cut(logits, self._top_k[at], self._top_p[at])
        probs = torch.softmax(logits, dim=-1)
        tokens, totals = inverse_cdf(probs, u[at])
        if self._any_greedy:
            tokens = torch.where(self._greedy[at], logits.argmax(dim=-1), tokens)
        # A drawn token has a positive probability, so this is as exact as a log-softmax.
        return _joined(tokens, probs.gather(1, tokens.unsqueeze(1)).squeeze(1).log(), totals)


def restrict(logits_RV: Tensor, masks: Mapping[int, Mask]) -> None:
    """Sets the logits of tokens that a row's mask does not allow to -inf."""
    for number, mask in masks.items():
        # Ids beyond the tokenizer's vocabulary get 0: they are not allowed.
        allowed = np.unpackbits(mask, count=logits_RV.shape[1], bitorder="little")
        refused_V = torch.from_numpy(allowed == 0).to(logits_RV.device)
        logits_RV[number].masked_fill_(refused_V, float("-inf"))


def checked_draws(drawn: NDArray[np.float64]) -> tuple[list[int], list[float]]:
    """Returns the tokens of `Sampler.draw` and their log-probabilities. Raises `ModelError` if a
    logit was not finite."""
    if not np.isfinite(drawn[2].sum()):
        raise ModelError(
            "the model's logits are not finite: its weights have diverged; "
            "lower the learning rate or resume from an earlier checkpoint",
            code=Code.DIVERGED,
        )
    return drawn[0].astype(np.int64).tolist(), drawn[1].tolist()


def inverse_cdf(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first token of each row whose cumulative probability exceeds ``u x total``, and
    the totals. If a total is not finite, the token is arbitrary.

    Sums are in float64, first over blocks of `BLOCK` tokens, then within the block of the token: a
    cumulative sum over the whole vocabulary would take ten times as long. Since ``u < 1``, the
    target is below the total, and a token of probability zero is never drawn.
    """
    vocab_size = probs.shape[1]
    starts = torch.arange(0, vocab_size, BLOCK, device=probs.device)
    whole = vocab_size // BLOCK * BLOCK
    sums = probs[:, :whole].unflatten(1, (-1, BLOCK)).sum(dim=2, dtype=torch.float64)
    if whole < vocab_size:
        rest = probs[:, whole:].sum(dim=1, keepdim=True, dtype=torch.float64)
        sums = torch.cat((sums, rest), dim=1)
    cdf = sums.cumsum(dim=1)
    total = cdf[:, -1:]
    target = _first_below(u.unsqueeze(1) * total, total)
    # The block in which the sum exceeds the target, and the target relative to its start.
    block = torch.searchsorted(cdf, target, right=True).clamp_(max=len(starts) - 1)
    inside = target - torch.nn.functional.pad(cdf, (1, 0)).gather(1, block)
    # All tokens of that block, [R, BLOCK]; the last block may reach beyond the vocabulary.
    tokens = starts[block] + torch.arange(BLOCK, device=probs.device)
    values = probs.gather(1, tokens.clamp(max=vocab_size - 1)).masked_fill_(tokens >= vocab_size, 0)
    cdf = values.cumsum(dim=1, dtype=torch.float64)
    within = torch.searchsorted(cdf, _first_below(inside, cdf[:, -1:]), right=True)
    return (starts[block] + within).squeeze(1).clamp_(max=vocab_size - 1), total.squeeze(1)


def _joined(tokens: Tensor, logprobs: Tensor, totals: Tensor) -> Tensor:
    return torch.stack((tokens.double(), logprobs.double(), totals))


def _first_below(target: Tensor, total: Tensor) -> Tensor:
    """Returns the target, but at most the largest number below the total: rounding may exceed
    it."""
    return torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))


def _cut(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Sets logits to -inf beyond the k likeliest tokens, then beyond the smallest set of mass p.

    Among equal logits the lower token id comes first.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    ordered = ordered.masked_fill(rank >= top_k, float("-inf"))
    probs = torch.softmax(ordered, dim=-1, dtype=torch.float64)
    # The smallest set of mass p: a token is cut if those before it already have this mass.
    before = probs.cumsum(dim=-1) - probs
    beyond = (before >= top_p) & (rank > 0)
    ordered = ordered.masked_fill(beyond, float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ordered)


def uniforms(seeds: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns a number in [0, 1) for each (seed, count), by SplitMix64."""
    mixed = _mix(seeds + _mix(counts.astype(np.uint64)))
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
