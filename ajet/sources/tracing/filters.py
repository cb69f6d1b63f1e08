"""Selects the conversations that become tasks, by the filters of the config in their order. A
conversation without the field that a filter needs (a score, a date, a model) is dropped.
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
    """Returns the conversations that pass all filters, and how many each filter dropped."""
    remaining, dropped = list(conversations), Counter[str]()
    for name, params in filters:
        if isinstance(params, DeduplicationParams):
            novel = Deduplicator(params).novel_indices([c.query for c in remaining])
            passed = [remaining[index] for index in novel]
        else:
            predicate = partial(PREDICATES[name], params)
            passed = [conversation for conversation in remaining if predicate(conversation)]
        dropped[name] += len(remaining) - len(passed)
        remaining = passed
    return remaining, dropped


def _has_score(params: ScoreParams, conversation: Conversation) -> bool:
    """Tells whether a score is in the range: the named one, or any if no name is set."""
    low = -math.inf if params.min is None else params.min
    high = math.inf if params.max is None else params.max
    names = conversation.scores if params.name is None else [params.name]
    scores = conversation.scores
    return any(low <= scores[name] <= high for name in names if name in scores)


def _has_label(params: FeedbackParams, conversation: Conversation) -> bool:
    names = conversation.labels if params.name is None else [params.name]
    return any(conversation.labels.get(name) in params.labels for name in names)


def _has_length(params: LengthParams, conversation: Conversation) -> bool:
    num_messages = len(conversation.messages) + 1
    num_characters = sum(len(text_of(m)) for m in conversation.messages) + len(conversation.answer)
    return _is_within(num_messages, params.min_messages, params.max_messages) and _is_within(
        num_characters, params.min_characters, params.max_characters
    )


def _is_within(number: int, low: int | None, high: int | None) -> bool:
    return (low is None or number >= low) and (high is None or number <= high)


def _uses_tools(params: ToolUseParams, conversation: Conversation) -> bool:
    names = conversation.tool_names
    matching = [name for name in names if not params.names or name in params.names]
    return bool(matching) == params.used


def _has_pattern(params: RegexParams, conversation: Conversation) -> bool:
    texts = {"query": [conversation.query], "answer": [conversation.answer]}
    whole = [*map(text_of, conversation.messages), conversation.answer]
    searched = texts.get(params.field) or whole
    return any(re.search(params.pattern, text) for text in searched) == params.keep


def _is_of_model(params: ModelParams, conversation: Conversation) -> bool:
    model = conversation.model
    return model is not None and any(fnmatchcase(model, name) for name in params.names)


def _is_in_time(params: DateParams, conversation: Conversation) -> bool:
    ended = conversation.ended
    if ended is None or (params.after is not None and ended < parse_iso_time(params.after)):
        return False
    return params.before is None or ended < parse_iso_time(params.before)


PREDICATES: dict[str, Callable[[Any, Conversation], bool]] = {
    "score": _has_score,
    "feedback": _has_label,
    "length": _has_length,
    "tool_use": _uses_tools,
    "regex": _has_pattern,
    "model": _is_of_model,
    "date": _is_in_time,
}
