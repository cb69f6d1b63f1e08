"""Rollout correction: importance weights between the sampler's log-probabilities and the trainer's.

The two differ where an engine computes in another precision, cuts by top-p, or has older weights.

    log-ratios     old - sampler, of two turns of 2 and 1 tokens    .1 .2 | -.4
    level token    exp of each                                    1.11 1.22 | .67
    level turn     exp of the turn's sum                          1.35 1.35 | .67
    sequence       exp of the episode's sum, over all timelines    .90  .90 | .90
    geometric_mean   exp of the mean instead of the sum: turn     1.16 1.16 | .67

    truncate       weights above `upper` become `upper`
    reject         weights outside [lower, upper] become 0: those tokens have no policy gradient
    normalize      then all are divided by their mean over the units of the batch

A weight multiplies the policy loss of its tokens, but neither KL nor entropy nor a denominator: a
token of weight 0 still counts in the mean. The product of a unit's ratios is unbiased and of high
variance, as in verl's `rollout_is: sequence`; their geometric mean (`combine`) stays near 1 for
long units and is biased, as in ROLL's weights of segments. Tokens can also be rejected by measures
of a distance (rejection.py).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.rejection import Masks, num_rejected, tokens_kept, without_rejected
from ajet.core.update.settings import CorrectionSettings, RatioCombination
from ajet.core.update.units import Units, log_ratios, tokens_of_units, units_of

Floats = NDArray[np.float64]


def apply_correction(
    samples: Sequence[TrainingSample], settings: CorrectionSettings
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Adds `weights` to samples that have `old_logprobs`, and returns the metrics.

    correction_ess is the effective sample size of the weights as applied, as a fraction of the
    units (tokens, turns or episodes); correction_ratio_max is the largest ratio of a unit, before
    the bounds. truncated_tokens counts the tokens whose weight was cut, rejected_tokens those
    without a policy loss. rejected_share is their share of the sampled tokens, and
    rejected_share_MEASURE the share that one measure rejects."""
    num_sampled = sum(sample.num_sampled for sample in samples)
    if not num_sampled:
        return list(samples), {}
    weighted, metrics = list(samples), {}
    # Masks over all tokens of a sample [T]; a token is rejected if bounds or a measure reject it.
    within = [np.ones(len(sample), np.bool_) for sample in samples]
    if settings.level != "none":
        weighted, within, metrics = _with_weights(samples, settings)
    kept, shares = tokens_kept(samples, settings.reject)
    both = [within_T & kept_T for within_T, kept_T in zip(within, kept, strict=True)]
    rejected = num_rejected(samples, both)
    metrics |= {"rejected_tokens": float(rejected), "rejected_share": rejected / num_sampled}
    if settings.reject:
        weighted = without_rejected(weighted, kept, settings)
    return weighted, metrics | shares


def effective_sample_size(weights: Floats) -> float:
    """Returns (sum w)^2 / sum w^2 over the number of weights, which is 1 where all are equal."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares else 0.0


def _with_weights(
    samples: Sequence[TrainingSample], settings: CorrectionSettings
) -> tuple[list[TrainingSample], Masks, dict[str, float]]:
    """Returns the samples with weights, masks [T] of the tokens that the bounds do not reject, and
    the metrics of the weights."""
    units = units_of(samples, settings.level)
    ratios_N = _ratios_of_units(samples, units, settings.combine)  # N: units, in all samples
    if settings.mode == "truncate":
        bounded_N = ratios_N.clip(max=settings.upper)
    else:
        is_inside_N = (ratios_N >= settings.lower) & (ratios_N <= settings.upper)
        bounded_N = np.where(is_inside_N, ratios_N, 0.0)
    # The mean is over units, not tokens: each unit is one draw. It is 0 where all are rejected.
    mean = float(bounded_N.mean()) if settings.normalize else 1.0
    weights_N = (bounded_N / mean if mean else bounded_N).astype(np.float32)
    pairs = list(zip(samples, units, strict=True))
    # Unit -1 means that the token was not sampled (a prompt, a tool result, a given reply): 1.
    weighted = [replace(s, weights=np.where(u_T >= 0, weights_N[u_T], 1)) for s, u_T in pairs]
    # A truncated unit differs from its ratio too, but keeps a gradient.
    is_within_N = (bounded_N == ratios_N) | (settings.mode == "truncate")
    cut = float(tokens_of_units(units)[bounded_N != ratios_N].sum())
    metrics = {
        "correction_ess": effective_sample_size(bounded_N),
        "correction_ratio_max": float(ratios_N.max()),
        "truncated_tokens": cut if settings.mode == "truncate" else 0.0,
    }
    return weighted, [np.where(u_T >= 0, is_within_N[u_T], True) for _, u_T in pairs], metrics


def _ratios_of_units(
    samples: Sequence[TrainingSample], units: Units, combine: RatioCombination
) -> Floats:
    """Returns old / sampler of each unit, in float64."""
    tokens_N = tokens_of_units(units)
    sums_N = np.zeros(len(tokens_N))
    for sample, unit_T in zip(samples, units, strict=True):
        # `sums_N[units] += …` would add only once where a unit has several tokens.
        np.add.at(sums_N, unit_T[sample.sampled_mask], log_ratios(sample))
    if combine == "geometric_mean":
        sums_N /= tokens_N
    # The sum of a long episode may be beyond what exp() can represent.
    return np.exp(sums_N.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))
