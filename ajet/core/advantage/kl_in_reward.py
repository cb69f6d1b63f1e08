"""The KL to the starting model, taken off the reward of each token.

    reward_t = r_t - coef * (logprob_t - reference_logprob_t)

Estimators that compare episodes take off the sum (`EpisodeCredit.score`). The difference is an
unbiased estimate of the KL, of tokens that the policy sampled itself (Schulman 2020, "Approximating
KL divergence", k1). What is reported, and what the coefficient is steered by, is its mean over
episodes of their mean over tokens.

Not covered: the KL as a term of the loss (`optim.use_kl_loss`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import EpisodeCredit, GroupCredit, TokenArrays


@dataclass(frozen=True, slots=True)
class PenalisedGroups:
    """The groups with penalties; the KL of a token, which the coefficient has no part in."""

    groups: list[GroupCredit]
    kl: float


def penalise_kl(
    groups: Sequence[GroupCredit],
    logprobs: Mapping[str, TokenArrays],
    reference: Mapping[str, TokenArrays],
    coef: float,
) -> PenalisedGroups:
    """Both mappings are by episode id, one array a turn (samples.py: `by_turn`)."""
    differences = {
        e.episode_id: _difference(e, logprobs[e.episode_id], reference[e.episode_id])
        for e in episodes_of(groups)
    }
    means = [np.concatenate(each).mean() for each in differences.values() if any(map(len, each))]
    penalised = [
        tuple(replace(e, penalties=_scaled(differences[e.episode_id], coef)) for e in group)
        for group in groups
    ]
    return PenalisedGroups(penalised, float(np.mean(means)) if means else 0.0)


def _difference(
    episode: EpisodeCredit, logprobs: TokenArrays, reference: TokenArrays
) -> TokenArrays:
    lengths = [len(each) for each in logprobs]
    assert lengths == episode.lengths_T.tolist(), (
        f"episode {episode.episode_id}: log-probabilities of {lengths} tokens a turn, "
        f"{episode.lengths_T.tolist()} were trained"
    )
    return tuple(own - other for own, other in zip(logprobs, reference, strict=True))


def _scaled(differences: TokenArrays, coef: float) -> TokenArrays:
    return tuple((coef * each).astype(np.float32) for each in differences)
