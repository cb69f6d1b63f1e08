"""The sampled tokens of a whole mini-batch, for losses that read more than one token.

    samples           e0: .1 .2    e1: -.3    e0: .3        e0 has two timelines
    log_ratio_M       .1 .2 -.3 .3
    episode_sums      .6 .6 -.3 .6
    episode_means     .2 .2 -.3 .2

Sums are in float64 and in the order of the samples, so they do not depend on micro-batches, layouts
and ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
TokenNumbers = Mapping[str, Floats]
"""Maps names to numbers of each trained token ``[M]`` of a mini-batch."""


@dataclass(frozen=True, slots=True)
class MiniBatchTokens:
    """The sampled tokens of all samples, in their order: log-probabilities under the current
    policy, the old one and the sampler, advantages, and the number of each token's episode.

    `seed` is for a loss that draws tokens: different in each optimizer step, the same after a
    resume."""

    logprobs_M: NDArray[np.floating]
    old_M: NDArray[np.floating]
    sampler_M: NDArray[np.floating]
    advantages_M: NDArray[np.floating]
    episodes_M: NDArray[np.int64]
    seed: tuple[int, ...] = (0,)

    @classmethod
    def of(
        cls, samples: Sequence[Any], logprobs: Sequence[NDArray[np.floating]], seed: tuple[int, ...]
    ) -> MiniBatchTokens:
        """Collects the tokens of `TrainingSample`s; `logprobs` has an array over all tokens of
        each."""
        numbers = {name: i for i, name in enumerate(dict.fromkeys(s.episode_id for s in samples))}

        def trained(arrays: Sequence[NDArray[np.floating]]) -> NDArray[np.floating]:
            pairs = zip(samples, arrays, strict=True)
            return np.concatenate([array_T[sample.sampled_mask] for sample, array_T in pairs])

        return cls(
            logprobs_M=trained(logprobs),
            old_M=trained([sample.old_or_sampled for sample in samples]),
            sampler_M=trained([sample.logprobs for sample in samples]),
            advantages_M=trained([sample.advantages for sample in samples]),
            episodes_M=np.repeat(
                np.array([numbers[sample.episode_id] for sample in samples], np.int64),
                np.array([sample.num_sampled for sample in samples], np.int64),
            ),
            seed=seed,
        )

    @property
    def log_ratio_M(self) -> Floats:
        """Returns log(pi / old) of each token."""
        return (self.logprobs_M - self.old_M).astype(np.float64)

    def episode_sums(self, values_M: Floats) -> Floats:
        """Returns for each token the sum of `values_M` over its episode."""
        sums_E = np.bincount(self.episodes_M, weights=values_M).astype(np.float64)
        return sums_E[self.episodes_M]

    def episode_means(self, values_M: Floats) -> Floats:
        """Returns for each token the mean of `values_M` over its episode."""
        return self.episode_sums(values_M) / np.bincount(self.episodes_M)[self.episodes_M]
