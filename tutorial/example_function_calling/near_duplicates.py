"""Finds questions that say nearly the same, to keep what is trained apart from what is measured.

    "Find the area of a triangle with a base of 10 units and height of 5 units."
    "What is the area of a triangle with base of 6 and height of 10?"              ->  0.44

The similarity of two questions is the Jaccard index of their sets of word pairs, with all numbers
alike: those that both have over those that either has. Not covered: paraphrases in other words.
"""

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def word_pairs(text: str) -> frozenset[tuple[str, str]]:
    """Returns the pairs of neighbouring words, in lower case, with # for each number; none of an
    empty text."""
    words = re.findall(r"[a-z]+|#", re.sub(r"\d[\d,.]*", "#", text.lower()))
    return frozenset(zip(["", *words], [*words, ""], strict=True)) - {("", "")}


def similarity(a: frozenset[T], b: frozenset[T]) -> float:
    """Returns the Jaccard index of two sets; of two empty ones 0."""
    return len(a & b) / (len(a | b) or 1)


def clusters(items: Sequence[T], are_twins: Callable[[T, T], bool]) -> list[list[int]]:
    """Returns the indices of the items, together where two are twins, directly or through
    others."""
    parents = list(range(len(items)))

    def root(index: int) -> int:
        while parents[index] != index:
            index = parents[index]
        return index

    for i in range(len(items)):
        for j in range(i):
            if are_twins(items[i], items[j]):
                parents[root(i)] = root(j)
    members: dict[int, list[int]] = {}
    for index in range(len(items)):
        members.setdefault(root(index), []).append(index)
    return list(members.values())
