"""Finds questions that say nearly the same, to keep what is trained apart from what is measured.

    "Find the area of a triangle with a base of 10 units and height of 5 units."
    "What is the area of a triangle with base of 6 and height of 10?"              ->  0.44

The similarity of two questions is the Jaccard index of their sets of word pairs, with all numbers
alike: those that both have over those that either has. Not covered: paraphrases in other words.
"""

import re
from collections.abc import Iterable, Sequence

WordPairs = frozenset[tuple[str, str]]


def word_pairs(text: str) -> WordPairs:
    """Returns the pairs of neighbouring words, in lower case, with # for each number."""
    words = re.findall(r"[a-z]+|#", re.sub(r"\d[\d,.]*", "#", text.lower()))
    return frozenset(zip(["", *words], [*words, ""], strict=True))


def similarity(a: WordPairs, b: WordPairs) -> float:
    """Returns the Jaccard index of two sets of word pairs."""
    return len(a & b) / len(a | b)


def nearest(text: str, others: Iterable[WordPairs]) -> float:
    """Returns the similarity of the question to the most similar of the others, or 0 if there are
    none."""
    own = word_pairs(text)
    return max((similarity(own, other) for other in others), default=0.0)


def clusters(names: Sequence[str], texts: Sequence[str], limit: float) -> list[list[int]]:
    """Returns the indices of the questions, together where they have one name (in any case, behind
    the last dot) or are at least as similar as `limit`, directly or through others."""
    pairs = [word_pairs(text) for text in texts]
    last_names = [name.rpartition(".")[2].lower() for name in names]
    parents = list(range(len(texts)))

    def root(index: int) -> int:
        while parents[index] != index:
            index = parents[index]
        return index

    for i in range(len(texts)):
        for j in range(i):
            if last_names[i] == last_names[j] or similarity(pairs[i], pairs[j]) >= limit:
                parents[root(i)] = root(j)
    members: dict[int, list[int]] = {}
    for index in range(len(texts)):
        members.setdefault(root(index), []).append(index)
    return list(members.values())
