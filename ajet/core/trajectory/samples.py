"""Makes training samples from groups of judged episodes and their advantages.

    group -> valid episodes -> timelines -> one TrainingSample each

Only valid episodes are read; the rollout decides what becomes of the others, and counts them. The
order is that of the groups, then of `rollout_index`, then of the timelines, so a batch does not
depend on which episode ended first.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import SAMPLED, Component, TrainingSample
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.trie import Timeline, timelines

TokenAdvantages = Mapping[str, Sequence[NDArray[np.float32]]]
"""``episode_id ->`` one array for each turn, with one number for each token that it sampled. The
array of a turn that is not trained may be empty."""


def to_samples(groups: Sequence[Group], advantages: TokenAdvantages) -> list[TrainingSample]:
    """Returns the samples of all valid episodes; each sampled token of a trainable turn is
    trained once.
    """
    valid = [trajectory for group in groups for trajectory in _in_order(group)]
    samples = [sample for trajectory in valid for sample in _samples(trajectory, advantages)]
    num_trained = sum(sample.num_trained for sample in samples)
    num_sampled = sum(trajectory.num_sampled for trajectory in valid)
    assert num_trained == num_sampled, f"{num_trained} tokens trained, {num_sampled} sampled"
    return samples


def by_turn(
    samples: Sequence[TrainingSample],
    arrays: Sequence[NDArray[np.float32]],
    groups: Sequence[Group] = (),
) -> dict[str, tuple[NDArray[np.float32], ...]]:
    """Splits arrays over the samples' tokens into one array for each turn of each episode.

    The array of a turn that is not trained is empty. `groups` are those of the samples: a sample
    does not know of turns after the last trained one, nor of an episode that trains nothing.
    Without them each tuple ends with that last turn.
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


def _in_order(group: Group) -> list[Trajectory]:
    return sorted(group.valid, key=lambda trajectory: trajectory.workflow_task.rollout_index)


def _samples(trajectory: Trajectory, advantages: TokenAdvantages) -> list[TrainingSample]:
    paths = timelines(trajectory.turns)
    assert not paths or trajectory.episode_id in advantages, (
        f"episode {trajectory.episode_id} is valid but has no advantages: the estimator gives them"
    )
    return [_sample(trajectory, path, advantages[trajectory.episode_id]) for path in paths]


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
    """Returns the streams of a timeline with a given turn: its tokens have a cross-entropy."""
    cross_entropy = np.zeros(len(timeline.token_ids), np.float32)
    for span in timeline.spans:
        cross_entropy[span.start : span.stop] = trajectory.turns[span.turn_index].is_given
    if not cross_entropy.any():
        return None
    sampled = timeline.loss_mask - cross_entropy
    return {**dict.fromkeys(SAMPLED, sampled), "cross_entropy": cross_entropy}
