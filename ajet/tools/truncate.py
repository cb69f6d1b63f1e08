"""Truncates a long answer of a tool to a number of tokens, and says how much was cut.

The sides are verl's, which name what stays; verl counts characters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ajet.core.errors import ConfigError
from ajet.core.workflow.tuner import ModelTuner

Side = Literal["left", "middle", "right"]
CHARACTERS_PER_TOKEN = 4
"""Assumed for a model behind an API without a tokenizer."""
FIRST_PROBE_CHARACTERS = 8
"""How many characters are tokenized first, per token of the limit."""


def truncate(text: str, limit: int, side: Side, model: ModelTuner) -> tuple[str, int]:
    """Returns the text with at most `limit` of its tokens left, and the number of characters that
    were cut, as in "The beginning stays …(9744 characters cut)". The note about the cut does not
    count in the limit."""

    def count_tokens(text: str) -> int:
        try:
            return len(model.encode(text))
        except ConfigError:  # a chat endpoint has no tokenizer
            return -(-len(text) // CHARACTERS_PER_TOKEN)

    def beginning(tokens: int) -> int:
        return _longest(lambda length: text[:length], len(text), tokens, count_tokens)

    def ending(tokens: int) -> int:
        return _longest(lambda length: text[len(text) - length :], len(text), tokens, count_tokens)

    num_first = beginning(limit)
    if num_first == len(text):
        return text, 0
    if side == "left":
        num_last = 0
    elif side == "right":
        num_first, num_last = 0, ending(limit)
    else:
        num_first, num_last = beginning((limit + 1) // 2), ending(limit // 2)
    num_cut = len(text) - num_first - num_last
    if num_cut <= 0:  # the halves meet: together they may have fewer tokens than the whole text
        return text, 0
    first, last = text[:num_first], text[len(text) - num_last :]
    note = f"({num_cut} characters cut)"
    return "…".join(filter(None, [first, note, last])), num_cut


def _longest(
    piece: Callable[[int], str], length: int, limit: int, count_tokens: Callable[[str], int]
) -> int:
    """Returns the largest number of characters, up to `length`, whose `piece` has at most `limit`
    tokens. The length is doubled until a piece is too long, then found by bisection."""
    # Invariant: a piece of `fits` characters fits. A megabyte of text is never tokenized whole if
    # the limit is small, because tokenizing takes time linear in the text or worse.
    fits, probed = 0, min(FIRST_PROBE_CHARACTERS * limit, length)
    while count_tokens(piece(probed)) <= limit:
        if probed == length:
            return length
        fits, probed = probed, min(2 * probed or FIRST_PROBE_CHARACTERS, length)
    too_long = probed
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count_tokens(piece(middle)) <= limit:
            fits = middle
        else:
            too_long = middle
    return fits
