"""Makes training samples from groups of judged episodes and their advantages.

    group -> valid episodes -> timelines, one TrainingSample each

Samples are in the order of the groups, then of `rollout_index`, then of the timelines, so a batch
does not depend on which episode ended first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    exactly once. Without `advantages`, for samples that are only scored, all are 0. `grammars` is
    needed where replies were sampled under grammars."""
    samples: list[TrainingSample] = []
    valid: list[Trajectory] = []
    for group in groups:
        valid += sorted(group.valid, key=lambda t: t.workflow_task.rollout_index)
    for trajectory in valid:
        name = trajectory.episode_id
        assert advantages is None or name in advantages or not trajectory.num_sampled, (
            f"episode {name} is valid but has no advantages: the estimator gives them"
        )
        of_turns = None if advantages is None else advantages.get(name)
        samples += timelines(
            trajectory.turns,
            of_turns,
            grammars=grammars,
            episode_id=name,
            group_id=trajectory.group_id,
        )
    num_trained = sum(sample.num_trained for sample in samples)
    num_sampled = sum(trajectory.num_sampled for trajectory in valid)
    assert num_trained == num_sampled, f"{num_trained} tokens trained, {num_sampled} sampled"
    return samples


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
