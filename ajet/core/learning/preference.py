"""Weighs given replies by preferences: DPO and KTO. Both losses read a batch through the implicit
rewards of replies alone, so their gradient is that of a cross-entropy with a weight for each reply,
minus the derivative by its ratio. The weights are taken before the step, so a step is one update on
all of its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ajet.core.config.kinds import PreferenceConfig
from ajet.core.trajectory.sample import Component, TrainingSample, TurnSpan
from ajet.core.trajectory.trajectory import Group
from ajet.core.update.policy import Policy

SMALLEST = float(np.finfo(np.float32).tiny)
"""The least weight: with 0 a reply would not count in the mean."""


@dataclass(slots=True)
class Weighed:
    """The weight of each reply, by episode id, with the losses of the batch and its metrics."""

    weights: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


class Preference:
    """Gives the samples of a batch the weights of a loss over preferences."""

    def __init__(self, section: PreferenceConfig, policy: Policy, max_length: int) -> None:
        """`max_length` is the most tokens that the model computes in one row."""
        self._section = section
        self._policy = policy
        self._max_length = max_length

    def with_weights(
        self, samples: Sequence[TrainingSample], groups: Sequence[Group]
    ) -> tuple[list[TrainingSample], dict[str, float]]:
        """Returns the groups' samples with their weights, and metrics. A pair of which one reply is
        left out (it is beyond a limit) trains nothing."""
        ratios = self._ratios(samples)
        if self._section.loss == "dpo":
            weighed = dpo(groups, ratios, self._section.beta)
        else:
            mismatched = self._ratios(with_next_prompts(samples, self._max_length))
            labels = {t.episode_id: t.reward == 1 for group in groups for t in group.valid}
            weighed = kto(labels, ratios, mismatched, self._section)
        rewards = {name: self._section.beta * ratio for name, ratio in ratios.items()}
        metrics = {f"preference/{name}": value for name, value in weighed.metrics.items()}
        metrics |= _mean_rewards(groups, rewards)
        if weighed.losses:
            metrics["preference/loss"] = float(np.mean(weighed.losses))
        return [_weighted(sample, weighed.weights) for sample in samples], metrics

    def _ratios(self, samples: Sequence[TrainingSample]) -> dict[str, float]:
        """Returns the ratio of each episode, in nats: sum log pi - sum log reference over a reply's
        tokens, with pi the policy before the step. beta times the ratio is the reply's implicit
        reward."""
        ratios: defaultdict[str, float] = defaultdict(float)
        scores = self._policy.score(samples), self._policy.reference_scores(samples)
        for sample, policy_T, reference_T in zip(samples, *scores, strict=True):
            difference_T = policy_T.astype(np.float64) - reference_T
            ratios[sample.episode_id] += float(difference_T[sample.loss_mask].sum())
        return dict(ratios)


def dpo(groups: Sequence[Group], ratios: Mapping[str, float], beta: float) -> Weighed:
    """Weighs the two replies of each whole pair; the reward of a chosen reply is 1, else 0. With
    the margin m = beta (ratio_chosen - ratio_rejected) a pair's loss is -log sigmoid(m), and the
    weight of the chosen reply beta sigmoid(-m), of the rejected one minus that (Rafailov et al.
    2023, arXiv 2305.18290, equation 7)."""
    weighed, margins = Weighed(), list[float]()
    for group in groups:
        by_reward = {t.reward: t.episode_id for t in group.valid}
        if len(by_reward) != 2:
            continue
        chosen, rejected = by_reward[1.0], by_reward[0.0]
        margin = beta * (ratios[chosen] - ratios[rejected])
        # Twice: the mean is over pairs, the update's over their two replies.
        weight = 2 * max(beta * _sigmoid(-margin), SMALLEST)
        weighed.weights |= {chosen: weight, rejected: -weight}
        weighed.losses.append(float(np.logaddexp(0, -margin)))
        margins.append(margin)
    if margins:
        weighed.metrics["margin"] = float(np.mean(margins))
        weighed.metrics["accuracy"] = float(np.mean([margin > 0 for margin in margins]))
    weighed.metrics["incomplete_pairs"] = float(len(groups) - len(margins))
    return weighed


def kto(
    labels: Mapping[str, bool],
    ratios: Mapping[str, float],
    mismatched: Mapping[str, float],
    section: PreferenceConfig,
) -> Weighed:
    """Weighs replies that are good or bad (Ethayarajh et al. 2024, arXiv 2402.01306, equation 8).

        good replies  good_weight (1 - s), s = sigmoid(beta (ratio - kl))      a reply has one loss
        bad ones      bad_weight  (1 - s), s = sigmoid(beta (kl - ratio))
        weight  +- beta * good_weight or bad_weight * s (1 - s)

    kl = max(0, the mean of `mismatched`: the ratio of each reply after the NEXT row's prompt)."""
    beta = section.beta
    kl = max(0.0, float(np.mean([*mismatched.values()]))) if mismatched else 0.0
    weighed = Weighed(metrics={"kl": kl})
    for name, ratio in ratios.items():
        sign = 1 if labels[name] else -1
        scale = section.good_weight if labels[name] else section.bad_weight
        value = _sigmoid(sign * beta * (ratio - kl))
        weighed.weights[name] = sign * max(scale * beta * value * (1 - value), SMALLEST)
        weighed.losses.append(scale * (1 - value))
    return weighed


def with_next_prompts(samples: Sequence[TrainingSample], max_length: int) -> list[TrainingSample]:
    """Returns the last reply of each sample after the prompt of the next sample's last reply,
    without those that are longer than `max_length`."""
    following = [*samples[1:], *samples[:1]]
    found = [_after(sample, other) for sample, other in zip(samples, following, strict=True)]
    return [sample for sample in found if len(sample) <= max_length]


def _after(sample: TrainingSample, other: TrainingSample) -> TrainingSample:
    span = sample.spans[-1]
    prompt = other.token_ids[: other.spans[-1].start]
    reply = sample.token_ids[span.start : span.stop]
    token_ids = np.concatenate((prompt, reply))
    is_reply_T = np.arange(len(token_ids)) >= len(prompt)
    zeros_T = np.zeros(len(token_ids), np.float32)
    streams: dict[Component, NDArray[np.float32]] = {"cross_entropy": is_reply_T.astype(np.float32)}
    return replace(
        sample,
        token_ids=token_ids,
        loss_mask=is_reply_T,
        logprobs=zeros_T,
        advantages=zeros_T,
        spans=(TurnSpan(len(prompt), len(token_ids), 0),),
        streams=streams,
    )


def _weighted(sample: TrainingSample, weights: Mapping[str, float]) -> TrainingSample:
    given_T = sample.stream("cross_entropy") * np.float32(weights.get(sample.episode_id, 0.0))
    return replace(sample, streams={**(sample.streams or {}), "cross_entropy": given_T})


def _mean_rewards(groups: Sequence[Group], rewards: Mapping[str, float]) -> dict[str, float]:
    """Returns the mean implicit reward of good and of bad replies."""
    by_label: dict[str, list[float]] = {"good": [], "bad": []}
    for trajectory in (t for group in groups for t in group.valid):
        if trajectory.episode_id in rewards:
            name = "good" if trajectory.reward == 1 else "bad"
            by_label[name].append(rewards[trajectory.episode_id])
    return {
        f"preference/{name}_reward": float(np.mean(values))
        for name, values in by_label.items()
        if values
    }


def _sigmoid(value: float) -> float:
    return float(np.exp(-np.logaddexp(0, -value)))
