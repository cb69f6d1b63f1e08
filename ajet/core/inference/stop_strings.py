"""Ends a completion at a stop string.

    stop ("Observation:",)   "Thought … Observation: 4 …"  ->  the tokens up to "Observation:"

The cut falls after the first token with which the text holds a stop string: an engine that had
stopped there would have sampled exactly these tokens, so nothing about their distribution changes,
and whether an engine stops early is a matter of speed alone. Not covered: the text that an agent
gets, which ends before the stop string (trajectory/reply_reader.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from ajet.core.inference.endpoint import Completion

Decode = Callable[[Sequence[int]], str]


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the text holds the first of them, and which it is."""
    found = [(position, stop) for stop in stops if (position := text.find(stop)) >= 0]
    return min(found, default=None)


def cut_at_stop(
    completion: Completion, stops: Sequence[str], decode: Decode
) -> tuple[Completion, str] | None:
    """The completion up to its first stop string and which one that is; None where it has none."""
    ids = completion.token_ids
    if first_stop(decode(ids), stops) is None:
        return None
    low, high = 0, len(ids)  # `high` tokens hold one, `low` do not
    while high - low > 1:
        middle = (low + high) // 2
        if first_stop(decode(ids[:middle]), stops) is None:
            low = middle
        else:
            high = middle
    found = first_stop(decode(ids[:high]), stops)
    assert found is not None
    cut = replace(
        completion,
        token_ids=ids[:high],
        logprobs=completion.logprobs[:high],
        finish_reason="stop",
    )
    return cut, found[1]
