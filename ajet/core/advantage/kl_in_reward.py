"""The KL penalty: the KL to the reference model is subtracted from the reward of each token.

    reward_t = r_t - coef * (logprob_t - reference_logprob_t)

Estimators that compare episodes subtract the sum over tokens (`EpisodeCredit.score`). For tokens
that the policy sampled, the difference is an unbiased estimate of the KL (Schulman 2020,
"Approximating KL divergence", k1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ajet.core.advantage.comparison import episodes_of
from ajet.core.advantage.credit import EpisodeCredit, GroupCredit, TokenArrays


@dataclass(frozen=True, slots=True)
class PenalisedGroups:
    """The groups with their penalties, and the KL, which also adapts the coefficient."""

    groups: list[GroupCredit]
    kl: float  # nats a token without the coefficient: the mean over episodes of their token means


def penalise_kl(
    groups: Sequence[GroupCredit],
    logprobs: Mapping[str, TokenArrays],
    reference: Mapping[str, TokenArrays],
    coef: float,
) -> PenalisedGroups:
    """Puts the KL penalty of each token into the credits. Both mappings have one array for each
    turn, by episode id (`by_turn` in trajectory/samples.py)."""
    differences = {
        e.episode_id: _difference(e, logprobs[e.episode_id], reference[e.episode_id])
        for e in episodes_of(groups)
    }
    means = [np.concatenate(turns).mean() for turns in differences.values() if any(map(len, turns))]
    penalties = {
        episode_id: tuple((coef * turn).astype(np.float32) for turn in turns)
        for episode_id, turns in differences.items()
    }
    penalised = [
        tuple(replace(e, penalties=penalties[e.episode_id]) for e in group) for group in groups
    ]
    return PenalisedGroups(penalised, float(np.mean(means)) if means else 0.0)


def _difference(
    episode: EpisodeCredit, logprobs: TokenArrays, reference: TokenArrays
) -> TokenArrays:
    lengths = [len(turn) for turn in logprobs]
    assert lengths == episode.lengths_T.tolist(), (
        f"episode {episode.episode_id}: log-probabilities of {lengths} tokens a turn, "
        f"{episode.lengths_T.tolist()} were trained"
    )
    return tuple(policy - ref for policy, ref in zip(logprobs, reference, strict=True))
