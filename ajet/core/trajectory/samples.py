"""Makes training samples from groups of judged episodes and their advantages.

    group -> valid episodes -> timelines -> one TrainingSample each

Samples are in the order of the groups, then of `rollout_index`, then of the timelines, so a batch
does not depend on which episode ended first.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import SAMPLED, Component, TrainingSample
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.trie import Timeline, timelines

TokenAdvantages = Mapping[str, Sequence[NDArray[np.float32]]]
"""``episode_id ->`` one array for each turn, with a number for each sampled token. That of a turn
that is not trained may be empty."""


def to_samples(groups: Sequence[Group], advantages: TokenAdvantages) -> list[TrainingSample]:
    """Returns the samples of all valid episodes. Each sampled token of a trainable turn is trained
    exactly once."""
    samples: list[TrainingSample] = []
    valid: list[Trajectory] = []
    for group in groups:
        valid += sorted(group.valid, key=lambda t: t.workflow_task.rollout_index)
    for trajectory in valid:
        name, paths = trajectory.episode_id, timelines(trajectory.turns)
        assert not paths or name in advantages, (
            f"episode {name} is valid but has no advantages: the estimator gives them"
        )
        samples += [_sample(trajectory, path, advantages[name]) for path in paths]
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


def _sample(
    trajectory: Trajectory, timeline: Timeline, of_turns: Sequence[NDArray[np.float32]]
) -> TrainingSample:
    advantages = np.zeros(len(timeline.token_ids), dtype=np.float32)
    for span in timeline.spans:
        turn_advantages = of_turns[span.turn_index]
        assert len(turn_advantages) == span.stop - span.start, (
            f"episode {trajectory.episode_id}, turn {span.turn_index}: {len(turn_advantages)} "
            f"advantages for {span.stop - span.start} sampled tokens"
        )
        advantages[span.start : span.stop] = turn_advantages
    return TrainingSample(
        episode_id=trajectory.episode_id,
        group_id=trajectory.group_id,
        token_ids=timeline.token_ids,
        loss_mask=timeline.loss_mask,
        logprobs=timeline.logprobs,
        advantages=advantages,
        spans=timeline.spans,
        min_policy_version=timeline.min_policy_version,
        max_policy_version=timeline.max_policy_version,
        streams=_streams(trajectory, timeline),
    )


def _streams(
    trajectory: Trajectory, timeline: Timeline
) -> dict[Component, NDArray[np.float32]] | None:
    """Returns the streams of a timeline with given turns: their tokens have the cross-entropy and
    no other term. None without such a turn."""
    cross_entropy = np.zeros(len(timeline.token_ids), np.float32)
    for span in timeline.spans:
        cross_entropy[span.start : span.stop] = trajectory.turns[span.turn_index].is_given
    if not cross_entropy.any():
        return None
    sampled = timeline.loss_mask - cross_entropy
    return {**dict.fromkeys(SAMPLED, sampled), "cross_entropy": cross_entropy}
