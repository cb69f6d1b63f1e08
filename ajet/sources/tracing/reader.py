"""The reader `tracing` makes tasks from conversations that an agent had in production. Ids are
hashes of the messages, so a growing source keeps the tasks that it had. But their number changes,
and a run resumes only with the same number: train from `train_output_path` in that case.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from loguru import logger

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
    read_filter,
)
from ajet.core.errors import DataError, DataNotFound, KeyMissing, RowError
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.task.jsonl import jsonl_text, read_jsonl, resolve
from ajet.core.task.reader import BaseTaskReader, task_from_row
from ajet.core.task.task import Task
from ajet.sources.similarity import Deduplicator
from ajet.sources.tracing.conversation import Conversation, text_of
from ajet.sources.tracing.phoenix import read_phoenix
from ajet.sources.tracing.spans import Span, conversations_in, spans_in
from ajet.sources.tracing.sqlite_source import read_sqlite

SECTION = "ajet.task_reader.tracing"
SQLITE_HEAD = b"SQLite format 3\x00"


class TracingReader(BaseTaskReader):
    """Reads the source once and divides its conversations into both splits, oldest first. A task's
    `answer` is the agent's last recorded message. Judges compare with it, but it may be wrong."""

    def get_training_tasks(self) -> list[Task]:
        rows = [conversation.row() for conversation in self._split[0]]
        if path := self.config.ajet.task_reader.tracing.train_output_path:
            file = Path(path).expanduser()
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(file, jsonl_text(rows))
        return self._tasks(rows)

    def get_validation_tasks(self) -> list[Task]:
        return self._tasks([conversation.row() for conversation in self._split[1]])

    @cached_property
    def _split(self) -> tuple[list[Conversation], list[Conversation]]:
        """The training and validation conversations; ids alone decide which are held out."""
        selected = self._selected()
        by_draw = sorted(selected, key=lambda conversation: _draw(conversation.task_id))
        num_held_out = int(len(selected) * self.config.ajet.task_reader.tracing.validation_fraction)
        held_out = {conversation.task_id for conversation in by_draw[:num_held_out]}
        training = [c for c in selected if c.task_id not in held_out]
        return training, [c for c in selected if c.task_id in held_out]

    def _selected(self) -> list[Conversation]:
        section = self.config.ajet.task_reader.tracing
        conversations, num_without = self._read()
        conversations.sort(key=lambda c: (c.ended.timestamp() if c.ended else 0.0, c.source_id))
        # The oldest of equal conversations stays: a dict keeps the last value of a key.
        first_of = {c.task_id: c for c in reversed(conversations)}
        once = [c for c in conversations if first_of[c.task_id] is c]
        read = (read_filter(number, filter_) for number, filter_ in enumerate(section.filters, 1))
        selected, dropped = apply_filters(once, [item for item in read if item is not None])
        dropped_before = Counter(
            {"no question and answer": num_without, "repeated": len(conversations) - len(once)}
        )
        counts = (dropped_before + dropped).items()
        reasons = ", ".join(f"{name} {count}" for name, count in counts if count)
        summary = f"{len(conversations) + num_without} recorded, {len(selected)} kept"
        summary += f" (dropped: {reasons})" if reasons else ""
        if not selected:
            raise DataError(f"{section.base_url}: no task: {summary}", code=Code.TASKS_NOT_MADE)
        logger.info("tracing: {}: {}", section.base_url, summary)
        return selected

    def _read(self) -> tuple[list[Conversation], int]:
        """Reads a Phoenix server, a run folder, an SQLite file, or a file of OpenTelemetry spans,
        whichever `base_url` is. Returns also the number of records without a conversation."""
        section = self.config.ajet.task_reader.tracing
        base_url = section.base_url
        if base_url is None:
            raise KeyMissing(f"{SECTION}.base_url is missing")
        if base_url.startswith(("http://", "https://")):
            return conversations_in(read_phoenix(base_url, section.project))
        path = resolve(base_url, self.config.base_dirs)
        path = path / "episodes.sqlite" if path.is_dir() else path
        if not path.is_file():
            raise DataNotFound(f"{SECTION}.base_url: {path}: no such file, and no http:// address")
        # SQLite files have no fixed suffix.
        with path.open("rb") as file:
            is_sqlite = file.read(len(SQLITE_HEAD)) == SQLITE_HEAD
        if is_sqlite:
            return read_sqlite(path)
        spans: list[Span] = []
        for number, record in enumerate(read_jsonl(path), 1):
            spans_of_record = list(spans_in(record))
            if not spans_of_record and "resourceSpans" not in record:
                raise RowError(
                    f"{path}: object {number} is not a span: no resourceSpans and no attributes"
                )
            spans += spans_of_record
        return conversations_in(spans)

    def _tasks(self, rows: list[dict[str, object]]) -> list[Task]:
        source = str(self.config.ajet.task_reader.tracing.base_url)
        return [
            task_from_row(row, index, split="trace", source=source, query_field="main_query")
            for index, row in enumerate(rows)
        ]


def _draw(task_id: str) -> str:
    """Returns a hash that orders tasks for holding them out, independent of other tasks."""
    return hashlib.sha256(f"held out/{task_id}".encode()).hexdigest()


def apply_filters(
    conversations: Sequence[Conversation], filters: Sequence[tuple[str, Section]]
) -> tuple[list[Conversation], Counter[str]]:
    """Returns the conversations that pass all filters of the config, in their order, and how many
    each filter dropped. A conversation without the field that a filter needs (a score, a date, a
    model) is dropped."""
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
