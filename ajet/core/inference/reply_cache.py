"""A cache of a model's replies: one SQLite file that several processes may share.

    cache = ReplyCache(path)          # the first look-up creates the file
    cache.put(key, "a reply")
    cache.get(key)                    # in any process

A look-up takes about ten microseconds, so it runs on the event loop. There is no write-ahead log:
it would not work on a network disk that several machines share (docs/adr/0021-staleness.md).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ajet.core.errors import ChatError
from ajet.core.errors.codes import Code

WAIT_S = 10.0  # the longest wait for another process that writes
_TABLE = "CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply TEXT NOT NULL)"

Result = TypeVar("Result")


class ReplyCache:
    """Stores texts by key; raises `ChatError` if the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None

    def get(self, key: str) -> str | None:
        query = "SELECT reply FROM replies WHERE key = ?"
        row = self._try(lambda: self._open().execute(query, (key,)).fetchone())
        return None if row is None else row[0]

    def put(self, key: str, reply: str) -> None:
        """Stores a reply; an existing one is kept, so that all processes use the same."""
        row = (key, reply)
        self._try(lambda: self._open().execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", row))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(
                self.path, isolation_level=None, timeout=WAIT_S, check_same_thread=False
            )
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(_TABLE)
            self._connection = connection
        return self._connection

    def _try(self, action: Callable[[], Result]) -> Result:
        try:
            return action()
        except (sqlite3.Error, OSError) as error:
            raise ChatError(
                f"cache {self.path} cannot be used: {error}; move it away", code=Code.CACHE_UNUSABLE
            ) from error
