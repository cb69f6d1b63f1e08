"""What a server that was killed needs to go on, in one SQLite file. A request is written before it
is acknowledged, and an answer before it is given. Used on the server's event loop alone, and before
it runs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.core.errors import RecordError
from ajet.core.record.episode_schema import database_problem

# `made` has the sessions, models and samplers that exist; `requests` those whose effect is not on
# the disk yet, without an answer or of a model that has no later checkpoint; `answers` those that a
# client may still ask for. Ids begin with their session's, up to the first colon.
SCHEMA = """
CREATE TABLE IF NOT EXISTS made
    (number INTEGER PRIMARY KEY, id TEXT UNIQUE, session_id TEXT, kind TEXT, about TEXT);
CREATE TABLE IF NOT EXISTS requests
    (number INTEGER PRIMARY KEY, id TEXT UNIQUE, session_id TEXT, path TEXT, body BLOB);
CREATE TABLE IF NOT EXISTS answers
    (id TEXT PRIMARY KEY, session_id TEXT, body BLOB, is_message INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request: a protobuf message, or JSON."""

    body: bytes
    is_message: bool = False

    @classmethod
    def from_value(cls, value: bytes | dict[str, Any]) -> Answer:
        return cls(value, True) if isinstance(value, bytes) else cls(json.dumps(value).encode())

    @classmethod
    def failed(cls, error: str, category: str = "user") -> Answer:
        """Returns what the SDK raises as an error. `category` is user, server or unknown."""
        return cls(json.dumps({"error": error, "category": category}).encode())


class Journal:
    """Raises `CheckpointError` where the file cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._reporting():
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # A write survives a killed process. After a power cut, the latest may be missing.
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(SCHEMA)

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RecordError(database_problem(self._path, error)) from error

    def _execute(self, statement: str, *values: Any) -> list[Any]:
        with self._reporting():
            return self._file.execute(statement, values).fetchall()

    def add(self, kind: str, name: str, about: Mapping[str, Any]) -> None:
        """Stores that a session, model or sampler exists; a later one of the name replaces it."""
        self._execute(
            "INSERT OR REPLACE INTO made (id, session_id, kind, about) VALUES (?, ?, ?, ?)",
            *(name, _session_of(name), kind, json.dumps(about)),
        )

    def made(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields name and description of all of a kind, in the order in which they were made."""
        query = "SELECT id, about FROM made WHERE kind = ? ORDER BY number"
        for name, about in self._execute(query, kind):
            yield name, json.loads(about)

    def add_request(self, request_id: str, path: str, body: bytes) -> None:
        """Stores a request, unless it is there."""
        self._execute(
            "INSERT OR IGNORE INTO requests (id, session_id, path, body) VALUES (?, ?, ?, ?)",
            *(request_id, _session_of(request_id), path, body),
        )

    def requests(self) -> Iterator[tuple[str, str, bytes]]:
        """Yields id, path and body of the stored requests, in the order in which they came."""
        for (number,) in self._execute("SELECT number FROM requests ORDER BY number"):
            # One body at a time.
            query = "SELECT id, path, body FROM requests WHERE number = ?"
            yield from self._execute(query, number)

    def add_answer(self, request_id: str, answer: Answer) -> None:
        """Stores an answer, unless there is one: a request that is computed again keeps it."""
        self._execute(
            "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)",
            *(request_id, _session_of(request_id), answer.body, answer.is_message),
        )

    def answer(self, request_id: str) -> Answer | None:
        rows = self._execute("SELECT body, is_message FROM answers WHERE id = ?", request_id)
        return Answer(rows[0][0], bool(rows[0][1])) if rows else None

    def forget_body(self, request_id: str) -> None:
        """Leaves the request's place among its model's: its path and its body are empty now."""
        self._execute("UPDATE requests SET path = '', body = '' WHERE id = ?", request_id)

    def drop_requests(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._execute("DELETE FROM requests WHERE id = ?", request_id)

    def drop_answer(self, request_id: str) -> None:
        self._execute("DELETE FROM answers WHERE id = ?", request_id)

    def drop_made(self, name: str) -> None:
        self._execute("DELETE FROM made WHERE id = ?", name)

    def drop_session(self, session_id: str) -> None:
        for table in ("made", "requests", "answers"):
            self._execute(f"DELETE FROM {table} WHERE session_id = ?", session_id)

    def drop_orphans(self) -> None:
        """Drops what belongs to no session."""
        for table in ("requests", "answers"):
            self._execute(
                f"DELETE FROM {table} WHERE session_id NOT IN (SELECT session_id FROM made)"
            )

    def close(self) -> None:
        self._file.close()


def _session_of(name: str) -> str:
    return name.partition(":")[0]
