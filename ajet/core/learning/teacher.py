"""A teacher scores the tokens that the policy sampled: on-policy distillation.

    samples of the policy's own episodes   ->   the same, with the teacher's log-probabilities and
                                                the component `kl_teacher` for each sampled token

The teacher is another model with the same tokens, which is never trained, in this process
(update/frozen_model.py) or behind a server (teacher_server.py). Its log-probabilities are at the
sampling temperature, as the policy's are. The component is an estimate of the KL from policy to
teacher, in the contexts that the policy itself gets into (update/loss.py).

Not covered: a teacher that is shown more than the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import Component, TrainingSample


class Scorer(Protocol):
    """Computes the teacher's log-probabilities."""

    def score(self, samples: Sequence[TrainingSample]) -> list[NDArray[np.float32]]:
        """Returns one array for each sample, as long as the sample, with the log-probabilities of
        its trained tokens and 0 at all other tokens."""
        ...


class Teacher:
    """Adds the scores of `scorer` to samples. `reward_weight` is that of the policy gradient beside
    them."""

    def __init__(self, scorer: Scorer, reward_weight: float) -> None:
        self.scorer = scorer
        self.reward_weight = reward_weight

    def with_scores(self, samples: Sequence[TrainingSample]) -> list[TrainingSample]:
        """Returns the samples with the teacher's log-probabilities and streams."""
        pairs = zip(samples, self.scorer.score(samples), strict=True)
        return [
            replace(sample, teacher_logprobs=score, streams=self._streams(sample))
            for sample, score in pairs
        ]

    def _streams(self, sample: TrainingSample) -> dict[Component, np.ndarray]:
        sampled = sample.sampled_mask.astype(np.float32)
        return {
            "policy_gradient": self.reward_weight * sampled,
            "kl_reference": sampled,
            "kl_teacher": sampled,
            "cross_entropy": sample.stream("cross_entropy"),
        }
