"""Reads conversations from an SQLite file, by the tables that it has: a run folder's episodes; chat
messages as JSON; or spans (AgentScope Studio's, Phoenix's). Phoenix's annotations come only from
its server.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ajet.core.errors import DataError, RowError
from ajet.core.errors.codes import Code
from ajet.read.episode_reader import EpisodeReader, EpisodeRow
from ajet.sources.tracing.conversation import Conversation, conversation_of
from ajet.sources.tracing.spans import Span, conversations_in, parse_time, spans_in

SPAN_TABLES = ("span_table", "spans")
PAGE = 200


def read_sqlite(path: Path) -> tuple[list[Conversation], int]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.row_factory = sqlite3.Row
            names = {row["name"] for row in database.execute("SELECT name FROM sqlite_master")}
            if {"episodes", "turns"} <= names:
                return _split_missing(_episode_conversations(path))
            if "conversations" in names:
                return _split_missing(_row_conversations(database, path))
            for table in SPAN_TABLES:
                if table in names:
                    return conversations_in(_spans(database, table, path))
    except sqlite3.Error as error:
        raise DataError(
            f"{path}: cannot be read as SQLite: {error}", code=Code.DATA_UNREADABLE
        ) from error
    raise DataError(
        f"{path}: there are the tables {', '.join(sorted(names)) or 'none'}; episodes, "
        "conversations, spans or span_table is needed",
        code=Code.DATA_FORMAT,
    )


def _split_missing(conversations: Iterator[Conversation | None]) -> tuple[list[Conversation], int]:
    everything = list(conversations)
    return [c for c in everything if c is not None], everything.count(None)


def _episode_conversations(path: Path) -> Iterator[Conversation | None]:
    """Yields each episode's last call, the oldest episode first."""
    with EpisodeReader(path) as reader:
        rows: list[EpisodeRow] = []
        while page := reader.list(limit=PAGE, after=rows[-1].id if rows else None):
            rows += page
        for row in reversed(rows):
            turns = reader.episode(row.episode_id).turns
            messages = [*turns[-1].messages, turns[-1].reply] if turns else []
            scores = {} if row.reward is None else {"reward": row.reward}
            yield conversation_of(row.episode_id, messages, scores=scores)


def _row_conversations(database: sqlite3.Connection, path: Path) -> Iterator[Conversation | None]:
    """Yields the rows of `conversations`: `messages` are chat messages as JSON, the answer last;
    id, score, label, model and created_at (ISO 8601) may be left out."""
    for number, row in enumerate(database.execute("SELECT * FROM conversations"), 1):
        fields = dict(row)
        location = f"{path}: conversations, row {number}"
        messages = _json(fields.get("messages"), list, f"{location}: messages")
        if not all(isinstance(message, dict) for message in messages):
            raise RowError(f"{location}: messages is not a list of chat messages")
        score, label = fields.get("score"), fields.get("label")
        yield conversation_of(
            str(fields.get("id") or number),
            messages,
            model=fields.get("model"),
            ended=parse_time(str(fields.get("created_at") or "")),
            scores={"score": float(score)} if isinstance(score, int | float) else {},
            labels={"label": label} if isinstance(label, str) else {},
        )


def _spans(database: sqlite3.Connection, table: str, path: Path) -> Iterator[Span]:
    for number, row in enumerate(database.execute(f"SELECT * FROM {table}"), 1):
        fields = dict(row)
        location = f"{path}: {table}, row {number}: attributes"
        attributes = _json(fields.get("attributes") or "{}", dict, location)
        yield from spans_in(fields | {"attributes": attributes})


def _json(text: Any, json_type: type, location: str) -> Any:
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        raise RowError(f"{location}: not JSON") from error
    if not isinstance(value, json_type):
        raise RowError(
            f"{location}: a {json_type.__name__} is expected, got a {type(value).__name__}"
        )
    return value
