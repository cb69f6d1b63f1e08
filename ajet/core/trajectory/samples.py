"""Makes training samples from groups of judged episodes: an episode's timelines, one sample each.

group -> valid episodes -> token trie -> timelines -> TrainingSample
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ajet.core.model.routes import Routes, merge_routes
from ajet.core.trajectory.sample import SAMPLED, Component, TokenMasks, TrainingSample, TurnSpan
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.core.trajectory.turn import Turn

if TYPE_CHECKING:
    from ajet.core.inference.grammar import Grammars

Ids = tuple[int, ...]
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
    under grammars.

    Samples are in the order of the groups, then of `rollout_index`, then of the timelines, so a
    batch does not depend on which episode ended first.
    """
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
    results: list[TrainingSample] = []
    for sample in samples:
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
        results.append(replace(sample, advantages=advantages_T))
    return results


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


def timelines(
    turns: Sequence[Turn],
    *,
    grammars: Grammars | None = None,
    episode_id: str = "",
    group_id: str = "",
) -> list[TrainingSample]:
    """Returns the episode's timelines: paths of its token trie from the root to a leaf. Each trains
    every turn that lies on it and is not trained on an earlier one:

        turn 0   [q]·a a                 timeline 0   [q] a a [t] b b      trains turns 0 and 1
        turn 1   [q a a t]·b b           timeline 1   [q] a a [u] c        trains turn 2
        turn 2   [q a a u]·c

    Every sampled token of a trainable turn is in exactly one loss mask, in the context that it was
    sampled in; turns that are not trainable get no timeline. Turns that sampled at the same
    positions of one path (retries, several samples of one prompt) get a timeline each, even if
    their ids are equal. Advantages are 0. `grammars` compiles those of turns that were sampled
    under one.
    """
    samples: list[TrainingSample] = []
    for path, chain in _chains(turns):
        loss_mask_T = np.zeros(len(path), np.bool_)
        logprobs_T, cross_entropy_T = np.zeros((2, len(path)), np.float32)
        spans: list[TurnSpan] = []
        for index in chain:
            completion = turns[index].completion
            start = len(completion.prompt_ids)
            stop = start + len(completion.token_ids)
            spans.append(TurnSpan(start, stop, index))
            loss_mask_T[start:stop] = True
            logprobs_T[start:stop] = completion.logprobs
            cross_entropy_T[start:stop] = turns[index].is_given
        streams: dict[Component, NDArray[np.float32]] | None = None
        if cross_entropy_T.any():  # tokens that were given have the cross-entropy and no other term
            streams = dict.fromkeys(SAMPLED, loss_mask_T - cross_entropy_T)
            streams["cross_entropy"] = cross_entropy_T
        trained = [turns[index] for index in chain]
        versions = [version for turn in trained for _, version in turn.versions]
        samples.append(
            TrainingSample(
                episode_id=episode_id,
                group_id=group_id,
                token_ids=np.array(path, np.int64),
                loss_mask=loss_mask_T,
                logprobs=logprobs_T,
                advantages=np.zeros(len(path), np.float32),
                spans=tuple(spans),
                min_policy_version=min(versions),
                max_policy_version=max(versions),
                streams=streams,
                routes=merge_routes(list(map(_routes, trained)), len(path)),
                masks=_masks(len(path), trained, grammars),
            )
        )
    return samples


def _masks(length: int, turns: Sequence[Turn], grammars: Grammars | None) -> TokenMasks | None:
    """Returns the masks of a timeline that trains these turns; None if none had a grammar."""
    replies = [
        (len(turn.completion.prompt_ids), turn.notes.grammar, turn.completion.token_ids)
        for turn in turns
        if turn.notes.grammar
    ]
    if not replies:
        return None
    assert grammars is not None, "a reply was sampled under a grammar: give to_samples the grammars"
    return TokenMasks.of(length, replies, grammars)


def _routes(turn: Turn) -> Routes | None:
    """Returns the experts of a turn's ids, without those that a stop string cut off."""
    completion = turn.completion
    num_ids = len(completion.prompt_ids) + len(completion.token_ids)
    return None if completion.routes is None else completion.routes[:num_ids]


def num_timelines(turns: Sequence[Turn]) -> int:
    """Returns the number of the episode's timelines without building their arrays."""
    return sum(1 for _ in _chains(turns))


def _chains(turns: Sequence[Turn]) -> Iterator[tuple[Ids, list[int]]]:
    """Yields the path of each timeline with the turns that it trains."""
    remaining = {
        index: (*turn.completion.prompt_ids, *turn.completion.token_ids)
        for index, turn in enumerate(turns)
        if turn.trainable and turn.completion.token_ids
    }
    parents = _parents(remaining)
    # One round trains all turns, except those that sampled the same positions of a path as another
    # turn, for example a retry with equal ids: they remain for the next round.
    while remaining:
        for leaf in _leaves(remaining, parents):
            chain = _chain(leaf, remaining, parents, turns)
            yield remaining[leaf], chain
            for index in chain:
                del remaining[index]


def _parents(paths: dict[int, Ids]) -> dict[int, int | None]:
    """Returns for each path the longest other path that it begins with.

    In sorted order a path comes after those it begins with, with only other continuations of them
    in between, so one stack of open prefixes finds them all.
    """
    parents: dict[int, int | None] = {}
    stack: list[int] = []
    # Of equal paths the earlier turn comes last, so that longer paths find it first on the stack.
    for index in sorted(paths, key=lambda index: (paths[index], -index)):
        path = paths[index]
        while stack and path[: len(paths[stack[-1]])] != paths[stack[-1]]:
            stack.pop()
        parents[index] = stack[-1] if stack else None
        stack.append(index)
    return parents


def _leaves(remaining: Iterable[int], parents: dict[int, int | None]) -> list[int]:
    """Returns the turns, in order, whose path no other remaining turn continues."""
    remaining = sorted(remaining)
    continued: set[int] = set()
    for index in remaining:
        above = parents[index]
        # Ancestors of one that is marked are marked already, so each is visited once.
        while above is not None and above not in continued:
            continued.add(above)
            above = parents[above]
    return [index for index in remaining if index not in continued]


def _chain(
    leaf: int, remaining: dict[int, Ids], parents: dict[int, int | None], turns: Sequence[Turn]
) -> list[int]:
    """Returns the turns that the leaf's path trains, in the order of the path: those not trained
    yet, so that no position is sampled by two of them."""
    chain: list[int] = []
    free_until = len(remaining[leaf])  # positions from here on belong to turns of the chain
    index: int | None = leaf
    while index is not None:
        if index in remaining and len(remaining[index]) <= free_until:
            chain.append(index)
            free_until = len(turns[index].completion.prompt_ids)
        index = parents[index]
    return chain[::-1]
