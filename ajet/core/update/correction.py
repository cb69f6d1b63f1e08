"""Rollout correction: importance weights between the sampler's log-probabilities and the trainer's,
and rejection of tokens by the distance between the two. They differ where an engine computes in
another precision, cuts by top-p, or has older weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.settings import CorrectionSettings, RatioCombination

Floats = NDArray[np.float64]
Masks = list[NDArray[np.bool_]]
Units = list[NDArray[np.int64]]
"""For each sample the number of every sampled token's unit, and -1 elsewhere [T]."""


def units_of(samples: Sequence[TrainingSample], level: str) -> Units:
    """Numbers the units that a correction weighs or measures: tokens, turns or episodes.

    samples           episode a: turns of 2 and 1 tokens     a's second timeline: 1 token
    level token       0 1 | 2                                3
    turn              0 0 | 1                                2
    sequence          0 0 | 0                                0"""
    numbers: dict[object, int] = {}
    units: Units = []
    for sample_index, sample in enumerate(samples):
        # A key for each token, that of its unit.
        keys: list[object] = [(sample_index, position) for position in range(len(sample))]
        if level == "sequence":  # an episode is one unit, over all its timelines
            keys = [sample.episode_id] * len(sample)
        elif level == "turn":
            for span in sample.spans:  # a turn is trained in one timeline only
                keys[span.start : span.stop] = [(sample_index, span)] * (span.stop - span.start)
        unit_T = np.full(len(sample), -1, np.int64)
        for position in np.flatnonzero(sample.sampled_mask):
            unit_T[position] = numbers.setdefault(keys[position], len(numbers))
        units.append(unit_T)
    return units


def tokens_of_units(units: Units) -> NDArray[np.int64]:
    """Returns the number of tokens of each unit."""
    # The empty array is for no samples: concatenate refuses an empty list.
    return np.bincount(np.concatenate([*(u[u >= 0] for u in units), np.zeros(0, np.int64)]))


def log_ratios(sample: TrainingSample) -> NDArray[np.float64]:
    """Returns log(old / sampler) of each sampled token of a sample that has `old_logprobs`."""
    assert sample.old_logprobs is not None
    log_ratio_T = sample.old_logprobs.astype(np.float64) - sample.logprobs
    return log_ratio_T[sample.sampled_mask]


def tokens_kept(
    samples: Sequence[TrainingSample], reject: Mapping[str, tuple[float, float]]
) -> tuple[Masks, dict[str, float]]:
    """Returns for each sample a mask [T] of the tokens that every measure accepts (verl's
    `rollout_rs`), and the share of sampled tokens that each measure rejects, as
    rejected_share_MEASURE. With d = log(old / sampler):

        k1, k2, k3          -d,  d^2 / 2,  exp(d) - 1 - d    estimates of KL(sampler || old) in nats
        token_k3            the token's estimate itself
        turn_…, seq_…       the sum, mean or max over a turn or an episode: seq_mean_k1, turn_max_k3
        bounds              k1: a number u is [-u, u], or [low, high]; k2 and k3: at most u"""
    kept = [np.ones(len(sample), np.bool_) for sample in samples]
    num_sampled = max(1, sum(sample.num_sampled for sample in samples))
    shares: dict[str, float] = {}
    for measure, (low, high) in reject.items():
        passed = [(low <= m_T) & (m_T <= high) for m_T in _measured(samples, measure)]
        shares[f"rejected_share_{measure}"] = num_rejected(samples, passed) / num_sampled
        kept = [kept_T & passed_T for kept_T, passed_T in zip(kept, passed, strict=True)]
    return kept, shares


def num_rejected(samples: Sequence[TrainingSample], kept: Masks) -> int:
    """Returns the number of sampled tokens that are not kept."""
    pairs = zip(samples, kept, strict=True)
    return sum(int((sample.sampled_mask & ~kept_T).sum()) for sample, kept_T in pairs)


def without_rejected(
    samples: Sequence[TrainingSample], kept: Masks, settings: CorrectionSettings
) -> list[TrainingSample]:
    """Returns the samples with weight 0 at the tokens that are not kept: these have no policy loss
    but count in the means. With `count_rejected` false their loss mask is false: no KL, no entropy,
    no place in any mean, as in verl."""
    pairs = zip(samples, kept, strict=True)
    if not settings.count_rejected:
        return [replace(s, loss_mask=s.loss_mask & kept_T) for s, kept_T in pairs]
    rejected = []
    for s, kept_T in pairs:
        weights_T = np.ones(len(s), np.float32) if s.weights is None else s.weights
        rejected.append(replace(s, weights=weights_T * (kept_T | ~s.loss_mask)))
    return rejected


def _measured(samples: Sequence[TrainingSample], measure: str) -> list[Floats]:
    """Returns the measure of each token's unit [T]; 0 for tokens that were not sampled."""
    unit_name, _, how = measure.partition("_")  # "turn_max_k3": turn, max_k3; "token_k3" has no max
    combine, _, estimate = how.rpartition("_")
    units = units_of(samples, "sequence" if unit_name == "seq" else unit_name)
    numbers_M = np.concatenate(
        [unit_T[sample.sampled_mask] for sample, unit_T in zip(samples, units, strict=True)]
    )
    d_M = np.concatenate([log_ratios(sample) for sample in samples])
    d_M = d_M.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    match estimate:  # of KL(sampler || old), from each token
        case "k1":
            values_M = -d_M
        case "k2":
            values_M = 0.5 * d_M**2
        case _:
            values_M = np.exp(d_M) - 1 - d_M
    values_N = _combine(numbers_M, values_M, combine)
    # Unit -1 reads the last value, which np.where then replaces.
    return [np.where(unit_T >= 0, values_N[unit_T], 0.0) for unit_T in units]


def _combine(numbers_M: NDArray[np.int64], values_M: Floats, combine: str) -> Floats:
    """Returns the sum, mean or max of the values of each unit; `numbers_M` is the unit of each
    value. One 0 more is appended, so that unit -1 can be looked up even where no token was
    sampled."""
    num_units = int(numbers_M.max(initial=-1)) + 1
    combined_N = np.zeros(num_units + 1)
    if combine == "max":
        np.maximum.at(combined_N, numbers_M, values_M)  # from 0: k2 and k3 are never negative
        return combined_N
    np.add.at(combined_N, numbers_M, values_M)
    if combine == "mean":
        combined_N[:num_units] /= np.bincount(numbers_M, minlength=num_units)
    return combined_N


def apply_correction(
    samples: Sequence[TrainingSample], settings: CorrectionSettings
) -> tuple[list[TrainingSample], dict[str, float]]:
    """Adds `weights` to samples that have `old_logprobs`, and returns the metrics.

        log-ratios     old - sampler, of two turns of 2 and 1 tokens    .1 .2 | -.4
        level token    exp of each                                    1.11 1.22 | .67
        level turn     exp of the turn's sum                          1.35 1.35 | .67
        sequence       exp of the episode's sum, over all timelines    .90  .90 | .90
        geometric_mean   exp of the mean instead of the sum: turn     1.16 1.16 | .67

        truncate       weights above `upper` become `upper`
        reject         weights outside [lower, upper] become 0: those tokens have no policy gradient
        normalize      then all are divided by their mean over the units of the batch

    A weight multiplies the policy loss of its tokens, but neither KL nor entropy nor a denominator:
    a token of weight 0 still counts in the mean. The product of a unit's ratios is unbiased and of
    high variance, as in verl's `rollout_is: sequence`; their geometric mean (`combine`) stays near
    1 for long units and is biased, as in ROLL's weights of segments.

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
