"""Makes training samples from groups of judged episodes and their advantages.

    group -> valid episodes -> timelines, one TrainingSample each

Samples are in the order of the groups, then of `rollout_index`, then of the timelines, so a batch
does not depend on which episode ended first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import TrainingSample
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.trie import timelines

if TYPE_CHECKING:
    from ajet.core.inference.matcher import Grammars

TokenAdvantages = Mapping[str, Sequence[NDArray[np.float32]]]
"""``episode_id ->`` one array for each turn, with a number for each sampled token. That of a turn
that is not trained may be empty."""


def to_samples(
    groups: Sequence[Group],
    advantages: TokenAdvantages | None = None,
    grammars: Grammars | None = None,
) -> list[TrainingSample]:
    """Returns the samples of all valid episodes. Each sampled token of a trainable turn is trained
    exactly once. Without `advantages` all are 0. `grammars` is needed where replies were sampled
    under grammars."""
    samples: list[TrainingSample] = []
    valid: list[Trajectory] = []
    for group in groups:
        valid += sorted(group.valid, key=lambda t: t.workflow_task.rollout_index)
    for trajectory in valid:
        samples += timelines(
            trajectory.turns,
            grammars=grammars,
            episode_id=trajectory.episode_id,
            group_id=trajectory.group_id,
        )
    num_trained = sum(sample.num_trained for sample in samples)
    num_sampled = sum(trajectory.num_sampled for trajectory in valid)
    assert num_trained == num_sampled, f"{num_trained} tokens trained, {num_sampled} sampled"
    return samples if advantages is None else with_advantages(samples, advantages)


def with_advantages(
    samples: Sequence[TrainingSample], advantages: TokenAdvantages
) -> list[TrainingSample]:
    """Returns the samples with these advantages at their sampled tokens."""
    return [_with_advantages(sample, advantages) for sample in samples]


def _with_advantages(sample: TrainingSample, advantages: TokenAdvantages) -> TrainingSample:
    name = sample.episode_id
    assert name in advantages, (
        f"episode {name} is valid but has no advantages: the estimator gives them"
    )
    advantages_T = np.zeros(len(sample), np.float32)
    for span in sample.spans:
        of_turn = advantages[name][span.turn_index]
        assert len(of_turn) == span.stop - span.start, (
            f"episode {name}, turn {span.turn_index}: {len(of_turn)} advantages for "
            f"{span.stop - span.start} sampled tokens"
        )
        advantages_T[span.start : span.stop] = of_turn
    return replace(sample, advantages=advantages_T)


def by_turn(
    samples: Sequence[TrainingSample],
    arrays: Sequence[NDArray[np.float32]],
    groups: Sequence[Group] = (),
) -> dict[str, tuple[NDArray[np.float32], ...]]:
    """Splits arrays over the samples' tokens into one array for each turn of each episode; that of
    a turn that is not trained is empty.

    `groups` are those of the samples: they have the turns after an episode's last trained one, and
    the episodes that train nothing. Without them each tuple ends with the last trained turn.
    """
    turns: dict[str, dict[int, NDArray[np.float32]]] = {}
    for sample, array in zip(samples, arrays, strict=True):
        of_episode = turns.setdefault(sample.episode_id, {})
        of_episode |= {span.turn_index: array[span.start : span.stop] for span in sample.spans}
    numbers = {name: 1 + max(by_index, default=-1) for name, by_index in turns.items()}
    numbers |= {t.episode_id: len(t.turns) for group in groups for t in group.valid}
    empty = np.zeros(0, np.float32)
    return {
        name: tuple(turns.get(name, {}).get(index, empty) for index in range(number))
        for name, number in numbers.items()
    }
