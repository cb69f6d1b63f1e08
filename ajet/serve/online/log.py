"""The durable log of a served model: sessions, feedback on them, and the rounds that trained on it.
A row is committed before its client is answered. Server and learner are two processes with separate
connections. Each adapter has separate sessions, rounds and versions; without adapters the adapter's
name is empty.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ajet.core.buffer.codec import decode, encode
from ajet.core.errors import CheckpointError, DataError
from ajet.core.errors.codes import Code
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.error_text import first_line
from ajet.core.trajectory.trajectory import EpisodeStatus, Group, Trajectory
from ajet.core.trajectory.turn import Turn
from ajet.serve.online.agreement import Agreement, Voice, agreements

FILE = "sessions.sqlite"
BUSY_S = 60.0
"""How long a writer waits for the other process, in seconds."""
# `place` is the order of feedback, which is the order of training. A session is once in `rated`, so
# it belongs to one round at most and nothing is trained twice. Rounds are numbered over all
# adapters. `verdicts` are those of held-out episodes, by their conversations.
_TABLES = """
CREATE TABLE IF NOT EXISTS turns (
    session TEXT NOT NULL, number INTEGER NOT NULL, version INTEGER NOT NULL, client TEXT NOT NULL,
    key TEXT NOT NULL, adapter TEXT NOT NULL DEFAULT '', body BLOB NOT NULL,
    PRIMARY KEY (session, number)
);
CREATE INDEX IF NOT EXISTS turns_by_key ON turns (client, key);
CREATE TABLE IF NOT EXISTS feedback (
    place INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, num_turns INTEGER NOT NULL,
    reward REAL NOT NULL, source TEXT NOT NULL, client TEXT NOT NULL, feedback_id TEXT UNIQUE,
    metadata TEXT NOT NULL, unix_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rated (
    session TEXT PRIMARY KEY, place INTEGER NOT NULL, round INTEGER, left_out TEXT
);
CREATE INDEX IF NOT EXISTS rated_by_round ON rated (round, place);
CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY, base INTEGER NOT NULL, state TEXT NOT NULL, checksum TEXT,
    report TEXT NOT NULL DEFAULT '{}', adapter TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS held_out (version INTEGER PRIMARY KEY, wins TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, is_success INTEGER NOT NULL);
"""

_OF_ADAPTER = "EXISTS (SELECT 1 FROM turns t WHERE t.session = {}.session AND t.adapter = ?)"
"""The condition that a row of this table belongs to a session of an adapter."""
MAX_CLIENTS = 50
"""The clients that a report names, at most."""
State = Literal["open", "promoted", "rolled_back"]
Source = Literal["client", "judge", "next_message"]
Wins = dict[str, list[bool]]
"""Maps a held-out task to the successes of its episodes."""
Receipt = Literal["recorded", "repeated", "late"]
"""A feedback counts, or its id was recorded before, or a round has already taken its session."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reward for a session up to now. `client` sent it, and `source` says how it came about. A
    second one with the same `feedback_id` has no effect."""

    session: str
    reward: float
    source: Source = "client"
    client: str = ""
    feedback_id: str | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RatedSession:
    """What is trained of a session: its turns until the feedback, and that feedback."""

    session: str
    client: str
    reward: float
    unix_s: float
    metadata: Mapping[str, Any]
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One round. Its number is that of the version which it makes; `base` is the version of the
    same adapter that it starts from."""

    number: int
    base: int
    state: State
    checksum: str | None
    report: Mapping[str, Any]
    adapter: str = ""

    @property
    def unreliable_clients(self) -> list[str]:
        """Returns the clients whose sessions were left out when the round began; none for a round
        that an older version of ajet logged."""
        return self.report.get("unreliable_clients", [])


class SessionLog:
    """The log of one run folder. Its methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._lock = threading.RLock()
        with self._database_errors():
            self._db = sqlite3.connect(
                self.path, BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            # Commits survive a killed process, though not a crash of the machine.
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_TABLES)
            for table in ("turns", "rounds"):
                columns = self._db.execute(f"PRAGMA table_info({table})").fetchall()
                if "adapter" not in [name for _, name, *_ in columns]:  # an earlier version's log
                    added = "ADD COLUMN adapter TEXT NOT NULL DEFAULT ''"
                    self._db.execute(f"ALTER TABLE {table} {added}")

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # --- sessions ----------------------------------------------------------------------------

    def add_turn(self, session: str, client: str, number: int, turn: Turn, key: str) -> None:
        """Stores a turn. `key` identifies the conversation up to its reply (sessions.py)."""
        body = encode([Group("", (episode_of("", [turn]),))])
        self._execute(
            "INSERT INTO turns (session, number, version, client, key, adapter, body) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(session, number, turn.completion.policy_version, client, key, turn.adapter, body),
        )

    def turns(self, session: str) -> dict[int, Turn]:
        """Returns the turns of a session by their numbers, without calls that failed."""
        query = "SELECT number, body FROM turns WHERE session = ? ORDER BY number"
        with self._database_errors():  # those of `decode` too
            rows = self._db.execute(query, (session,)).fetchall()
            return {number: decode(body)[0].trajectories[0].turns[0] for number, body in rows}

    def session_at(self, client: str, key: str) -> str | None:
        """Returns the client's newest session that had exactly this conversation after a reply."""
        query = "SELECT session FROM turns WHERE client = ? AND key = ? ORDER BY rowid DESC LIMIT 1"
        rows = self._execute(query, client, key)
        return rows[0][0] if rows else None

    # --- feedback ----------------------------------------------------------------------------

    def add_feedback(self, feedback: Feedback) -> Receipt:
        """Stores feedback on the session's turns until now. Until a round takes the session, later
        feedback replaces earlier feedback. Raises KeyError for a session without a turn."""
        f = feedback
        with self._transaction():
            (num_turns,) = self._db.execute(
                "SELECT COUNT(*) FROM turns WHERE session = ?", (f.session,)
            ).fetchone()
            if not num_turns:
                raise KeyError(f.session)
            added = self._db.execute(
                "INSERT OR IGNORE INTO feedback VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    f.session, num_turns, float(f.reward), f.source, f.client, f.feedback_id,
                    json.dumps(dict(f.metadata or {})), time.time(),
                ),
            )  # fmt: skip
            if not added.rowcount:
                return "repeated"
            # A rated session moves to the end of the queue; one that a round has taken stays there.
            changed = self._db.execute(
                "INSERT INTO rated VALUES (?, ?, NULL, NULL) ON CONFLICT (session) "
                "DO UPDATE SET place = excluded.place WHERE round IS NULL",
                (f.session, added.lastrowid),
            )
            return "recorded" if changed.rowcount else "late"

    def num_waiting(self, adapter: str = "") -> int:
        """Returns how many sessions of an adapter have feedback and are in no round yet."""
        query = "SELECT COUNT(*) FROM rated WHERE round IS NULL AND " + _OF_ADAPTER.format("rated")
        return self._execute(query, adapter)[0][0]

    # --- rounds ------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Returns the newest version of any adapter: that of the last promoted round, or 0."""
        query = "SELECT COALESCE(MAX(number), 0) FROM rounds WHERE state = 'promoted'"
        return self._execute(query)[0][0]

    def served_version(self, adapter: str = "") -> int:
        """Returns the version of an adapter that is served: the last one promoted, or 0."""
        return max(self._promoted(adapter), default=0)

    def begin_round(
        self,
        num_sessions: int,
        max_staleness: int,
        excluded_clients: Sequence[str] = (),
        max_false_exclusion: float | None = None,
        adapter: str = "",
    ) -> Round | None:
        """Moves the first `num_sessions` rated sessions of an adapter into a new round; None if
        there are fewer. These are left out for good: stale sessions, with tokens from before the
        last `max_staleness` promotions; sessions rated by an excluded client; and those rated by a
        client that contradicts the others more often than an honest one would with probability
        `max_false_exclusion` (agreement.py)."""
        with self._transaction():
            agreed = self.agreements(adapter)
            bound = max_false_exclusion or 0.0
            unreliable = [agreement.client for agreement in agreed if agreement.chance <= bound]
            promoted = self._promoted(adapter)
            # The oldest version that is not stale: `max_staleness` promotions before the newest.
            oldest = ([0, *sorted(promoted)])[-1 - min(max_staleness, len(promoted))]
            # Rounds count from 1: 0 marks a session that no later round will take.
            waiting = "round IS NULL AND " + _OF_ADAPTER.format("rated")
            self._db.execute(
                f"UPDATE rated SET round = 0, left_out = 'stale' WHERE {waiting} AND EXISTS "
                "(SELECT 1 FROM turns WHERE turns.session = rated.session AND version < ?)",
                (adapter, oldest),
            )
            self._db.executemany(
                f"UPDATE rated SET round = 0, left_out = ? WHERE {waiting} AND "
                "(SELECT client FROM feedback WHERE feedback.place = rated.place) = ?",
                [
                    *(("excluded", adapter, client) for client in excluded_clients),
                    *(("unreliable", adapter, client) for client in unreliable),
                ],
            )
            query = f"SELECT session FROM rated WHERE {waiting} ORDER BY place LIMIT ?"
            sessions = self._db.execute(query, (adapter, num_sessions)).fetchall()
            if len(sessions) < num_sessions:
                return None
            (last,) = self._db.execute("SELECT COALESCE(MAX(number), 0) FROM rounds").fetchone()
            base = max(promoted, default=0)
            report = {
                "agreement": [agreement.as_json() for agreement in agreed[:MAX_CLIENTS]],
                "unreliable_clients": unreliable,
            }
            self._db.execute(
                "INSERT INTO rounds (number, base, state, report, adapter) "
                "VALUES (?, ?, 'open', ?, ?)",
                (last + 1, base, json.dumps(report), adapter),
            )
            self._db.executemany(
                "UPDATE rated SET round = ? WHERE session = ?",
                [(last + 1, session) for (session,) in sessions],
            )
        return self.round(last + 1)

    def withdraw_round(self, number: int) -> None:
        """Takes back an undecided round; its sessions wait again and its number is free."""
        with self._transaction():
            undecided = "SELECT number FROM rounds WHERE number = ? AND state = 'open'"
            self._db.execute(
                f"UPDATE rated SET round = NULL WHERE round IN ({undecided})", (number,)
            )
            self._db.execute(f"DELETE FROM rounds WHERE number IN ({undecided})", (number,))

    def sessions_of(self, number: int) -> list[RatedSession]:
        query = (
            "SELECT f.session, f.client, f.reward, f.unix_s, f.metadata, f.num_turns FROM rated "
            "JOIN feedback f ON f.place = rated.place WHERE round = ? ORDER BY f.place"
        )
        rated: list[RatedSession] = []
        for session, client, reward, unix_s, text, num_turns in self._execute(query, number):
            turns = tuple(self.turns(session).values())[:num_turns]
            rated.append(RatedSession(session, client, reward, unix_s, json.loads(text), turns))
        return rated

    def agreements(self, adapter: str = "") -> list[Agreement]:
        """Compares the clients of an adapter's rated sessions with each other and with the judge's
        verdicts on held-out episodes (agreement.py)."""
        # Feedback after n turns is about the conversation up to the n-th reply, so the feedback's
        # num_turns is joined with the row number of the turn within its session.
        query = (
            "SELECT f.client, t.key, f.reward > 0 FROM rated "
            "JOIN feedback f ON f.place = rated.place JOIN (SELECT session, key, "
            "ROW_NUMBER() OVER (PARTITION BY session ORDER BY number) AS num_turns FROM turns "
            "WHERE adapter = ?) t USING (session, num_turns) WHERE f.client != '' ORDER BY f.place"
        )
        opinions = self._execute(query, adapter)
        voices = [Voice(client, key, bool(good)) for client, key, good in opinions]
        verdicts = self._execute("SELECT key, is_success FROM verdicts")
        return agreements(voices, {key: bool(is_success) for key, is_success in verdicts})

    def add_verdicts(self, verdicts: Mapping[str, bool]) -> None:
        """Stores whether held-out episodes were successes, by the keys of their conversations."""
        with self._transaction():
            self._db.executemany(
                "INSERT OR REPLACE INTO verdicts VALUES (?, ?)", list(verdicts.items())
            )

    def end_round(
        self, number: int, state: State, checksum: str, report: Mapping[str, Any], wins: Wins
    ) -> None:
        """Stores the decision on a round, the evidence, and the checksum of the weights."""
        decided = (state, checksum, json.dumps(report), number)
        with self._transaction():
            self._db.execute(
                "UPDATE rounds SET state = ?, checksum = ?, report = ? "
                "WHERE number = ? AND state = 'open'",
                decided,
            )
            self.add_held_out(number, wins)

    def rounds(self) -> list[Round]:
        columns = "number, base, state, checksum, report, adapter"
        rows = self._execute(f"SELECT {columns} FROM rounds ORDER BY number")
        return [
            Round(number, base, state, checksum, json.loads(text), adapter)
            for number, base, state, checksum, text, adapter in rows
        ]

    def round(self, number: int) -> Round:
        return next(item for item in self.rounds() if item.number == number)

    def open_round(self) -> Round | None:
        return next((item for item in self.rounds() if item.state == "open"), None)

    def add_held_out(self, version: int, wins: Wins) -> None:
        self._execute("INSERT OR REPLACE INTO held_out VALUES (?, ?)", version, json.dumps(wins))

    def held_out(self, version: int) -> Wins | None:
        """Returns the successes of a version on the held-out tasks, or None if not measured."""
        rows = self._execute("SELECT wins FROM held_out WHERE version = ?", version)
        return json.loads(rows[0][0]) if rows else None

    def counts(self, adapter: str | None = None) -> dict[str, int]:
        """Returns how many sessions, turns and feedbacks there are, and what happened to the rated
        sessions; of one adapter, or of all."""
        queries = {
            "num_sessions": ("DISTINCT session", "turns", "TRUE"),
            "num_turns": ("*", "turns", "TRUE"),
            "num_feedback": ("*", "feedback", "TRUE"),
            "num_waiting": ("*", "rated", "round IS NULL"),
            "num_in_rounds": ("*", "rated", "round > 0"),
            "num_stale": ("*", "rated", "left_out = 'stale'"),
            "num_excluded": ("*", "rated", "left_out = 'excluded'"),
            "num_unreliable": ("*", "rated", "left_out = 'unreliable'"),
        }
        counts: dict[str, int] = {}
        with self._lock:  # one moment for all counts
            for name, (column, table, condition) in queries.items():
                query, values = f"SELECT COUNT({column}) FROM {table} WHERE {condition}", ()
                if adapter is not None:
                    query, values = f"{query} AND {_OF_ADAPTER.format(table)}", (adapter,)
                ((counts[name],),) = self._execute(query, *values)
        return counts

    def _promoted(self, adapter: str) -> list[int]:
        query = "SELECT number FROM rounds WHERE state = 'promoted' AND adapter = ?"
        return [number for (number,) in self._execute(query, adapter)]

    def _execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._database_errors():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._database_errors():
            self._db.execute("BEGIN IMMEDIATE")  # a lock now, instead of a conflict at the commit
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    @contextmanager
    def _database_errors(self) -> Iterator[None]:
        """Holds the lock, and turns an error of the file or its disk into a one-line error."""
        try:
            with self._lock:
                yield
        except (sqlite3.Error, DataError) as error:
            raise CheckpointError(
                f"{self.path} cannot be used: {first_line(str(error))}; fix that, and start the "
                "same command again",
                code=Code.RECORD_UNWRITABLE,
            ) from error


def episode_of(
    session: str, turns: Sequence[Turn], *, round_number: int = 0, index: int = 0
) -> Trajectory:
    """Returns the turns of a session as an episode without a reward, the only one of its group."""
    group_id = f"{round_number:06d}-train-{index:04d}"
    plan = WorkflowTask(Task(session), session, group_id, 0, round_number, "train", 0)
    return Trajectory(plan, tuple(turns), EpisodeStatus.OK)
