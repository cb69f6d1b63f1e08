"""Rejection of tokens by measures of the distance between the sampler and the old policy.

A token is kept if every measure accepts it (verl's `rollout_rs`). With d = log(old / sampler):

    k1, k2, k3          -d,  d^2 / 2,  exp(d) - 1 - d      estimates of KL(sampler || old) in nats
    token_k3            the token's estimate itself
    turn_…, seq_…       the sum, mean or max over a turn or an episode: seq_mean_k1, turn_max_k3
    bounds              k1: a number u is [-u, u], or [low, high]; k2 and k3: at most u

A rejected token has no policy loss but counts in the means; with `count_rejected` false it leaves
the loss altogether: no KL, no entropy, no place in any mean, as in verl.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ajet.core.losses.token_loss import MAX_LOG_RATIO
from ajet.core.trajectory.sample import TrainingSample
from ajet.core.update.settings import CorrectionSettings
from ajet.core.update.units import log_ratios, units_of

Floats = NDArray[np.float64]
Masks = list[NDArray[np.bool_]]


def tokens_kept(
    samples: Sequence[TrainingSample], reject: Mapping[str, tuple[float, float]]
) -> tuple[Masks, dict[str, float]]:
    """Returns for each sample a mask [T] of the tokens that every measure accepts, and the share of
    sampled tokens that each measure rejects, as rejected_share_MEASURE."""
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
    """Returns the samples with weight 0, or loss mask false, at the tokens that are not kept."""
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
    values_M = np.concatenate([_estimate(log_ratios(sample), estimate) for sample in samples])
    values_N = _combine(numbers_M, values_M, combine)
    # Unit -1 reads the last value, which np.where then replaces.
    return [np.where(unit_T >= 0, values_N[unit_T], 0.0) for unit_T in units]


def _estimate(log_ratio_M: Floats, name: str) -> Floats:
    """Returns an estimate of KL(sampler || old) from each token."""
    d_M = log_ratio_M.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    match name:
        case "k1":
            return -d_M
        case "k2":
            return 0.5 * d_M**2
        case _:
            return np.exp(d_M) - 1 - d_M


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
