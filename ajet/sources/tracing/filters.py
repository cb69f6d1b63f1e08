"""Selects the conversations that become tasks, by the filters of the config in their order.

    kept, dropped = apply_filters(conversations, [("score", ScoreParams(min=0.5)), …])
    dropped == {"score": 30, "deduplication": 4}

A conversation that lacks what a filter looks at (a score, a date, a model) is dropped. Not
covered: reading the parameters (core/config/tracing.py).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from ajet.core.config.section import Section
from ajet.core.config.tracing import (
    DateParams,
    DeduplicationParams,
    FeedbackParams,
    LengthParams,
    ModelParams,
    RegexParams,
    ScoreParams,
    ToolUseParams,
    parse_iso_time,
)
from ajet.sources.similarity import Deduplicator
from ajet.sources.tracing.conversation import Conversation, text_of


def apply_filters(
    conversations: Sequence[Conversation], filters: Sequence[tuple[str, Section]]
) -> tuple[list[Conversation], Counter[str]]:
    """Returns the conversations that pass all filters, in their order, and how many each filter
    dropped."""
    remaining, dropped = list(conversations), Counter[str]()
    for name, params in filters:
        if isinstance(params, DeduplicationParams):
            novel = Deduplicator(params).novel_indices([each.query for each in remaining])
            passed = [remaining[index] for index in novel]
        else:
            predicate = partial(PREDICATES[name], params)
            passed = [each for each in remaining if predicate(each)]
        dropped[name] += len(remaining) - len(passed)
        remaining = passed
    return remaining, dropped


def _has_score(params: ScoreParams, each: Conversation) -> bool:
    """Returns whether a score is in the range: the named one, or any if no name is given."""
    low = -math.inf if params.min is None else params.min
    high = math.inf if params.max is None else params.max
    names = each.scores if params.name is None else [params.name]
    return any(low <= each.scores[name] <= high for name in names if name in each.scores)


def _has_label(params: FeedbackParams, each: Conversation) -> bool:
    names = each.labels if params.name is None else [params.name]
    return any(each.labels.get(name) in params.labels for name in names)


def _has_length(params: LengthParams, each: Conversation) -> bool:
    num_messages = len(each.messages) + 1
    num_characters = sum(len(text_of(m)) for m in each.messages) + len(each.answer)
    return _is_within(num_messages, params.min_messages, params.max_messages) and _is_within(
        num_characters, params.min_characters, params.max_characters
    )


def _is_within(number: int, low: int | None, high: int | None) -> bool:
    return (low is None or number >= low) and (high is None or number <= high)


def _uses_tools(params: ToolUseParams, each: Conversation) -> bool:
    matching = [name for name in each.tool_names if not params.names or name in params.names]
    return bool(matching) == params.used


def _has_pattern(params: RegexParams, each: Conversation) -> bool:
    texts = {"query": [each.query], "answer": [each.answer]}
    searched = texts.get(params.field) or [*map(text_of, each.messages), each.answer]
    return any(re.search(params.pattern, text) for text in searched) == params.keep


def _is_of_model(params: ModelParams, each: Conversation) -> bool:
    return each.model is not None and any(fnmatchcase(each.model, name) for name in params.names)


def _is_in_time(params: DateParams, each: Conversation) -> bool:
    if each.ended is None:
        return False
    is_late_enough = params.after is None or each.ended >= parse_iso_time(params.after)
    return is_late_enough and (params.before is None or each.ended < parse_iso_time(params.before))


PREDICATES: dict[str, Callable[[Any, Conversation], bool]] = {
    "score": _has_score,
    "feedback": _has_label,
    "length": _has_length,
    "tool_use": _uses_tools,
    "regex": _has_pattern,
    "model": _is_of_model,
    "date": _is_in_time,
}
