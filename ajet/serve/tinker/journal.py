"""What a server that was killed needs to go on, in one SQLite file.

    made       sessions, models and samplers that exist
    requests   those whose effect is not on the disk yet: without an answer, or of a model that has
               no later checkpoint
    answers    those that a client may still ask for

A request is written before it is acknowledged, and an answer before it is given. Ids begin with
their session's, up to the first colon. Used on the server's event loop alone, and before it runs.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.record.episode_schema import database_problem

TABLES = ("made", "requests", "answers")
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
    def __init__(self, path: Path) -> None:
        try:
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            # A write survives a killed process. After a power cut, the latest may be missing.
            self._file.execute("PRAGMA journal_mode = WAL")
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.executescript(SCHEMA)
        except sqlite3.Error as error:
            raise CheckpointError(
                database_problem(path, error), code=Code.RECORD_UNREADABLE
            ) from error

    def add(self, kind: str, name: str, about: Mapping[str, Any]) -> None:
        """Stores that a session, model or sampler exists; a later one of the name replaces it."""
        self._file.execute(
            "INSERT OR REPLACE INTO made (id, session_id, kind, about) VALUES (?, ?, ?, ?)",
            [name, _session_of(name), kind, json.dumps(about)],
        )

    def made(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields name and description of all of a kind, in the order in which they were made."""
        query = "SELECT id, about FROM made WHERE kind = ? ORDER BY number"
        for name, about in self._file.execute(query, [kind]).fetchall():
            yield name, json.loads(about)

    def add_request(self, request_id: str, path: str, body: bytes) -> None:
        self._file.execute(
            "INSERT OR IGNORE INTO requests (id, session_id, path, body) VALUES (?, ?, ?, ?)",
            [request_id, _session_of(request_id), path, body],
        )

    def requests(self) -> Iterator[tuple[str, str, bytes]]:
        """Yields id, path and body of the stored requests, in the order in which they came."""
        ids = self._file.execute("SELECT id FROM requests ORDER BY number").fetchall()
        for (request_id,) in ids:  # one body at a time
            query = "SELECT id, path, body FROM requests WHERE id = ?"
            yield from self._file.execute(query, [request_id]).fetchall()

    def add_answer(self, request_id: str, answer: Answer) -> None:
        """Stores an answer, unless there is one: a request that is computed again keeps it."""
        self._file.execute(
            "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)",
            [request_id, _session_of(request_id), answer.body, answer.is_message],
        )

    def answer(self, request_id: str) -> Answer | None:
        query = "SELECT body, is_message FROM answers WHERE id = ?"
        row = self._file.execute(query, [request_id]).fetchone()
        return None if row is None else Answer(row[0], bool(row[1]))

    def has_answer(self, request_id: str) -> bool:
        query = "SELECT 1 FROM answers WHERE id = ?"
        return self._file.execute(query, [request_id]).fetchone() is not None

    def drop_requests(self, request_ids: Sequence[str]) -> None:
        self._drop("requests", "id", request_ids)

    def drop_answer(self, request_id: str) -> None:
        self._drop("answers", "id", [request_id])

    def drop_made(self, name: str) -> None:
        self._drop("made", "id", [name])

    def drop_session(self, session_id: str) -> None:
        for table in TABLES:
            self._drop(table, "session_id", [session_id])

    def _drop(self, table: str, column: str, values: Sequence[str]) -> None:
        statement = f"DELETE FROM {table} WHERE {column} = ?"
        self._file.executemany(statement, [[value] for value in values])

    def close(self) -> None:
        self._file.close()


def _session_of(name: str) -> str:
    return name.partition(":")[0]
