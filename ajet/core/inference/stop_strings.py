"""Cuts a completion at its first stop string.

    stop ("Observation:",)   "Thought … Observation: 4 …"  ->  the tokens up to "Observation:"

The cut is after the first token that completes a stop string. An engine that stops there samples
exactly these tokens, so stopping early is faster but changes no distribution. The text that the
agent gets ends before the stop string (trajectory/reply_reader.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ajet.core.inference.endpoint import Completion

Decode = Callable[[Sequence[int]], str]


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Returns the position of the first stop string in the text and that string, or None."""
    matches = [(position, stop) for stop in stops if (position := text.find(stop)) >= 0]
    return min(matches, default=None)


def cut_at_stop(
    completion: Completion, stops: Sequence[str], decode: Decode
) -> tuple[Completion, str] | None:
    """Returns the completion up to its first stop string, and that string, or None without one."""
    ids = completion.token_ids
    if first_stop(decode(ids), stops) is None:
        return None
    # A binary search for the shortest prefix with a stop string: `high` tokens have one, `low` do
    # not. Tokens cannot be searched directly, since a stop string may begin or end within one.
    low, high = 0, len(ids)
    while high - low > 1:
        middle = (low + high) // 2
        if first_stop(decode(ids[:middle]), stops) is None:
            low = middle
        else:
            high = middle
    match = first_stop(decode(ids[:high]), stops)
    assert match is not None
    cut = replace(
        completion,
        token_ids=ids[:high],
        logprobs=completion.logprobs[:high],
        finish_reason="stop",
    )
    return cut, match[1]
