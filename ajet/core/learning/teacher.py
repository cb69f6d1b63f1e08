"""A teacher scores the tokens that the policy sampled: on-policy distillation. It is a frozen model
with the same tokenizer, in this process (update/frozen_model.py) or behind a server
(teacher_server.py); or the policy before the step's update, shown a hint (trajectory/hint.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.hint import HintedSample
from ajet.core.trajectory.sample import Component, TrainingSample
from ajet.core.trajectory.trajectory import Group


class Scorer(Protocol):
    """Computes the teacher's log-probabilities, at the sampling temperature."""

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns one array for each sample, as long as the sample, with the log-probabilities of
        its trained tokens and 0 at all other tokens."""
        ...


class Teacher:
    """Adds the scores of `scorer` to samples, and the component `kl_teacher` of each sampled token:
    it estimates the KL to the teacher in the contexts that the policy reaches (update/loss.py).
    `reward_weight` scales the policy gradient of the same tokens. With `is_shown_hints` samples are
    scored after prompts that contain the hint."""

    def __init__(
        self, scorer: Scorer, reward_weight: float, *, is_shown_hints: bool = False
    ) -> None:
        self.scorer = scorer
        self.reward_weight = reward_weight
        self.is_shown_hints = is_shown_hints

    def with_scores(
        self, samples: Sequence[TrainingSample], groups: Sequence[Group]
    ) -> list[TrainingSample]:
        """Returns the groups' samples with the teacher's log-probabilities and streams."""
        if self.is_shown_hints:
            scores = self._scores_with_hints(samples, groups)
        else:
            scores = self.scorer.score(samples)
        return [
            replace(sample, teacher_logprobs=score, streams=self._streams(sample))
            for sample, score in zip(samples, scores, strict=True)
        ]

    def _scores_with_hints(
        self, samples: Sequence[TrainingSample], groups: Sequence[Group]
    ) -> list[NDArray[np.float32]]:
        turns = {t.episode_id: t.turns for group in groups for t in group.valid}
        trained = [n for n, sample in enumerate(samples) if sample.num_trained]
        hinted = [HintedSample(samples[n], turns[samples[n].episode_id]) for n in trained]
        scores_N = [np.zeros(len(sample), np.float32) for sample in samples]
        scores = self.scorer.score([hinted_sample.sample for hinted_sample in hinted])
        for n, hinted_sample, score in zip(trained, hinted, scores, strict=True):
            scores_N[n] = hinted_sample.scores(score)
        return scores_N

    def _streams(self, sample: TrainingSample) -> dict[Component, np.ndarray]:
        sampled = sample.sampled_mask.astype(np.float32)
        return {
            "policy_gradient": self.reward_weight * sampled,
            "kl_reference": sampled,
            "kl_teacher": sampled,
            "cross_entropy": sample.stream("cross_entropy"),
        }
