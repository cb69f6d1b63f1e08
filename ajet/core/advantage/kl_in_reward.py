"""The KL penalty: the KL to the reference model is subtracted from the reward of each token.

    reward_t = r_t - coef * (logprob_t - reference_logprob_t)

Estimators that compare episodes subtract the sum over tokens (`EpisodeCredit.score`). For tokens
that the policy sampled itself, the difference is an unbiased estimate of the KL (Schulman 2020,
"Approximating KL divergence", k1). The metric, which also adapts the coefficient, is the mean over
episodes of their means over tokens.

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
    """Holds the groups with their penalties, and the mean KL of a token without the coefficient."""

    groups: list[GroupCredit]
    kl: float


def penalise_kl(
    groups: Sequence[GroupCredit],
    logprobs: Mapping[str, TokenArrays],
    reference: Mapping[str, TokenArrays],
    coef: float,
) -> PenalisedGroups:
    """Puts the KL penalty of each token into the credits.

    Both mappings give one array for each turn, by episode id (`by_turn` in trajectory/samples.py).
    """
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
