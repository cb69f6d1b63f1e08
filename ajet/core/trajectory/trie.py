"""An episode's token trie, cut into timelines.

Every completion is a path over exact token ids: its prompt, then what it sampled. Paths that begin
alike share a prefix. A timeline is one path from the root to a leaf; it trains every turn that lies
on it and is not trained on an earlier one:

    turn 0   [q]·a a                 timeline 0   [q] a a [t] b b      trains turns 0 and 1
    turn 1   [q a a t]·b b           timeline 1   [q] a a [u] c        trains turn 2
    turn 2   [q a a u]·c

So each sampled token of a trainable turn is trained exactly once, in the context it was sampled in.
Turns that sampled at the same positions of one path (retries, several samples of one prompt) get a
timeline each, even if their ids are equal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ajet.core.trajectory.sample import TurnSpan
from ajet.core.trajectory.turn import Turn

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Holds one path of the trie, and the turns trained on it.

    The arrays have equal length; `logprobs` is 0 where `loss_mask` is. `spans` are in the order of
    the path; their `turn_index` counts the episode's turns.
    """

    token_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    spans: tuple[TurnSpan, ...]
    min_policy_version: int
    max_policy_version: int

    @property
    def num_trained(self) -> int:
        return sum(span.stop - span.start for span in self.spans)


def timelines(turns: Sequence[Turn]) -> list[Timeline]:
    """Returns the episode's timelines. Every sampled token of a trainable turn is in exactly one
    loss mask; turns that are not trainable get no timeline."""
    return [_timeline(path, chain, turns) for path, chain in _chains(turns)]


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


def _timeline(path: Ids, chain: Sequence[int], turns: Sequence[Turn]) -> Timeline:
    token_ids = np.array(path, dtype=np.int64)
    loss_mask = np.zeros(len(path), dtype=np.bool_)
    logprobs = np.zeros(len(path), dtype=np.float32)
    spans: list[TurnSpan] = []
    for index in chain:
        completion = turns[index].completion
        start = len(completion.prompt_ids)
        span = TurnSpan(start, start + len(completion.token_ids), index)
        loss_mask[span.start : span.stop] = True
        logprobs[span.start : span.stop] = completion.logprobs
        spans.append(span)
    versions = [turns[index].completion.policy_version for index in chain]
    return Timeline(token_ids, loss_mask, logprobs, tuple(spans), min(versions), max(versions))
