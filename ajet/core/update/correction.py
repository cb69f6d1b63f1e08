"""Rollout correction: importance weights between the sampler's log-probabilities and the trainer's.

The two differ where an engine computes in another precision, cuts by top-p, or is some steps
behind.

    log-ratios     old - sampler, of two turns of 2 and 1 tokens    .1 .2 | -.4
    level token    exp of each                                    1.11 1.22 | .67
    level turn     exp of the turn's sum                          1.35 1.35 | .67
    sequence       exp of the episode's sum, over all timelines    .90  .90 | .90
    geometric_mean   exp of the mean instead of the sum: turn     1.16 1.16 | .67

    truncate       weights above `upper` become `upper`
    reject         weights outside [lower, upper] become 0: those tokens have no policy gradient

A weight multiplies the policy loss of its tokens, neither KL nor entropy, and no denominator: a
rejected token still counts in the mean. The product of a unit's ratios is unbiased and of high
variance, as in verl's `rollout_is: sequence`; their geometric mean (`combine`) stays near 1 for
long units and is biased, as in ROLL's weights of segments.

Not covered: verl's filter `seq_mean_k1`, which rejects by the geometric mean and does not weigh;
weights normalised over the batch.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.losses.token_loss import MAX_LOG_RATIO
from ajet.core.update.settings import CorrectionSettings, RatioCombination

Floats = NDArray[np.float64]
Units = list[NDArray[np.int64]]


def apply_correction(
    samples: Sequence[TrainingSample], settings: CorrectionSettings
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Returns the samples, which have `old_logprobs`, with `weights`, and the metrics of the
    correction.

    correction_ess is the effective sample size of the weights as applied, as a fraction of the
    units (tokens, turns or episodes); correction_ratio_max is the largest ratio of a unit, before
    the bounds; truncated_tokens and rejected_tokens count the tokens that the bounds changed.
    """
    units = _units(samples, settings.level)
    ratios_N = _ratios_of_units(samples, units, settings.combine)
    weights_N = _apply_bounds(ratios_N, settings)
    weighted = [
        replace(sample, weights=np.where(unit_T >= 0, weights_N[unit_T], 1.0).astype(np.float32))
        if sample.num_trained
        else sample
        for sample, unit_T in zip(samples, units, strict=True)
    ]
    return weighted, _metrics(units, ratios_N, weights_N, settings)


def effective_sample_size(weights: Floats) -> float:
    """Returns (sum w)^2 / sum w^2 over the number of weights, which is 1 where all are equal."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / (len(weights) * squares) if squares else 0.0


def _units(samples: Sequence[TrainingSample], level: str) -> Units:
    """Returns for each sample the number of every trained token's unit, and -1 elsewhere."""
    numbers: dict[object, int] = {}
    units: Units = []
    for sample_index, sample in enumerate(samples):
        names = _unit_keys(sample, sample_index, level)
        unit_T = np.full(len(sample), -1, np.int64)
        for position in np.flatnonzero(sample.loss_mask):
            unit_T[position] = numbers.setdefault(names[position], len(numbers))
        units.append(unit_T)
    return units


def _unit_keys(sample: TrainingSample, sample_index: int, level: str) -> list[object]:
    """Returns for each token a key that identifies its unit."""
    if level == "sequence":
        return [sample.episode_id] * len(sample)
    names: list[object] = [(sample_index, position) for position in range(len(sample))]
    if level == "turn":
        for span in sample.spans:  # a turn is trained on one timeline
            names[span.start : span.stop] = [(sample_index, span)] * (span.stop - span.start)
    return names


def _ratios_of_units(
    samples: Sequence[TrainingSample], units: Units, combine: RatioCombination
) -> Floats:
    num_units = 1 + max((int(unit_T.max(initial=-1)) for unit_T in units), default=-1)
    sums_N = np.zeros(num_units)
    for sample, unit_T in zip(samples, units, strict=True):
        assert sample.old_logprobs is not None
        log_ratio_T = sample.old_logprobs.astype(np.float64) - sample.logprobs
        np.add.at(sums_N, unit_T[sample.loss_mask], log_ratio_T[sample.loss_mask])
    if combine == "geometric_mean":
        sums_N /= _tokens_of_units(units, num_units)
    return np.exp(sums_N.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO))


def _tokens_of_units(units: Units, num_units: int) -> NDArray[np.int64]:
    return sum(
        (np.bincount(unit_T[unit_T >= 0], minlength=num_units) for unit_T in units),
        np.zeros(num_units, np.int64),
    )


def _apply_bounds(ratios_N: Floats, settings: CorrectionSettings) -> Floats:
    if settings.mode == "truncate":
        return ratios_N.clip(max=settings.upper)
    is_within_N = (ratios_N >= settings.lower) & (ratios_N <= settings.upper)
    return np.where(is_within_N, ratios_N, 0.0)


def _metrics(
    units: Units, ratios_N: Floats, weights_N: Floats, settings: CorrectionSettings
) -> dict[str, float]:
    if not len(ratios_N):
        return {}
    tokens_N = _tokens_of_units(units, len(ratios_N))
    cut = float(np.sum(tokens_N * (weights_N != ratios_N)))
    return {
        "correction_ess": effective_sample_size(weights_N),
        "correction_ratio_max": float(ratios_N.max()),
        "truncated_tokens": cut if settings.mode == "truncate" else 0.0,
        "rejected_tokens": cut if settings.mode == "reject" else 0.0,
    }
