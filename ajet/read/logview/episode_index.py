"""A private index of a run's episodes, for lists, filters and searches: a temporary SQLite database
that is gone with the process, as the run folder may be read-only and belongs to the run.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.core.errors import OptionError, RecordError
from ajet.core.record.episode_schema import (
    attached_for_reading,
    database_problem,
    open_for_reading,
)
from ajet.core.record.run_folder import is_file
from ajet.read.episode_reader import RowSelection, where_clause

CHUNK = 500
MAX_LISTED_TEXT, MAX_TAGS = 300, 200
Row = dict[str, Any]

_COPIED = (
    "id, episode_id, step, mode, group_id, rollout_index, task_id, tasks_id, status, ended_as, "
    "reward, is_success, num_turns, num_sampled_tokens, min_policy_version, max_policy_version, "
    "CASE mode WHEN 'train' THEN step - 1 - min_policy_version END AS staleness, seconds, "
    f"advantage, substr(query, 1, {MAX_LISTED_TEXT}) AS query, "
    f"substr(error, 1, {MAX_LISTED_TEXT}) AS error"
)
_TABLES = """
CREATE TABLE rows (
    id INTEGER PRIMARY KEY, episode_id TEXT NOT NULL, step INTEGER NOT NULL, mode TEXT NOT NULL,
    group_id TEXT NOT NULL, rollout_index INTEGER NOT NULL, task_id TEXT NOT NULL, tasks_id INTEGER,
    status TEXT NOT NULL, ended_as TEXT NOT NULL, reward REAL, is_success INTEGER,
    num_turns INTEGER NOT NULL, num_sampled_tokens INTEGER NOT NULL, min_policy_version INTEGER,
    max_policy_version INTEGER, staleness INTEGER, seconds REAL NOT NULL, advantage REAL,
    query TEXT NOT NULL, error TEXT
) STRICT;
CREATE INDEX rows_by_step ON rows (step, mode, group_id, rollout_index);
CREATE INDEX rows_by_mode ON rows (mode, step);
CREATE INDEX rows_by_task ON rows (task_id);
CREATE TABLE tags (tasks_id INTEGER PRIMARY KEY, tag TEXT NOT NULL);
CREATE VIRTUAL TABLE said USING fts5(words, content='', detail=full);
CREATE TABLE called (tool TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (tool, id)) WITHOUT ROWID;
CREATE TABLE spoke (agent TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (agent, id)) WITHOUT ROWID;
"""  # noqa: E501
_EMPTIED = "".join(
    f"DROP TABLE IF EXISTS {name};" for name in ("rows", "tags", "said", "called", "spoke")
)
SORTS = {
    "step": "id",
    "task": "task_id",
    "status": "status",
    "reward": "reward",
    "advantage": "advantage",
    "turns": "num_turns",
    "tokens": "num_sampled_tokens",
    "seconds": "seconds",
    "staleness": "staleness",
}
NEWEST_FIRST = "-step"
_SOLVED = "sum(is_success = 1 AND status IN ('ok', 'truncated'))"
_TASKS = f"""
WITH each AS MATERIALIZED (
    SELECT task_id, step, count(*) AS num, {_SOLVED} AS successes, total(reward) AS reward,
        count(reward) AS num_rewards, min(query) AS query
    FROM rows WHERE mode = ? GROUP BY task_id, step
),
first AS (SELECT task_id, min(step) AS step, successes, num FROM each GROUP BY task_id),
last AS (SELECT task_id, max(step) AS step, successes, num FROM each GROUP BY task_id),
whole AS (
    SELECT task_id, min(query) AS query, sum(num) AS num, sum(successes) AS successes,
        count(*) AS num_steps, sum(reward) / nullif(sum(num_rewards), 0) AS reward
    FROM each GROUP BY task_id
)
SELECT whole.*, first.step AS first_step, last.step AS last_step,
    1.0 * first.successes / first.num AS first, 1.0 * last.successes / last.num AS last,
    1.0 * last.successes / last.num - 1.0 * first.successes / first.num AS change
FROM whole JOIN first USING (task_id) JOIN last USING (task_id)
"""  # with min() and max() SQLite takes the other columns from the row with that minimum or maximum


@dataclass(frozen=True, slots=True)
class Selection(RowSelection):
    """Selects episodes by more than their rows. Each word of `text` is a prefix of a word in the
    conversation; `tool` was called, `agent` called the model."""

    min_tokens: int | None = None
    max_tokens: int | None = None
    min_staleness: int | None = None
    task_id: str | None = None
    tag: str | None = None
    tool: str | None = None
    agent: str | None = None
    text: str | None = None

    @property
    def needs_words(self) -> bool:
        """Tells whether conversations have to be indexed for this selection."""
        return any((self.text, self.tool, self.agent))

    def where(self) -> tuple[str, list[Any]]:
        conditions = {
            **self.conditions(),
            "num_sampled_tokens >= ?": self.min_tokens,
            "num_sampled_tokens <= ?": self.max_tokens,
            "staleness >= ?": self.min_staleness,
            "task_id = ?": self.task_id,
            "tasks_id IN (SELECT tasks_id FROM tags WHERE tag = ?)": self.tag,
            "id IN (SELECT id FROM called WHERE tool = ?)": self.tool,
            "id IN (SELECT id FROM spoke WHERE agent = ?)": self.agent,
            "id IN (SELECT rowid FROM said WHERE said MATCH ?)": (
                None if not self.text else _match(self.text)
            ),
        }
        return where_clause(conditions)


class EpisodeIndex:
    """Answers questions about a run's episodes; safe for several threads. Raises `CheckpointError`
    if the run's file is damaged.

    It has one narrow row per episode. Before each answer it adds the new episodes; after a resume
    that took episodes back it starts over. The words of the conversations (all roles but system,
    tool calls, names of agents) are indexed from the first search on, newest first; a long run
    takes seconds, so a caller may search only what `add_words` has indexed until now."""

    def __init__(self, path: Path, chunk: int = CHUNK) -> None:
        """`chunk` episodes at a time are indexed while other threads wait."""
        self._path = path
        self._chunk = chunk
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            "", isolation_level=None, check_same_thread=False, uri=True
        )
        self._connection.row_factory = sqlite3.Row
        self._empty()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def list(
        self,
        which: Selection | None = None,
        *,
        sort: str = NEWEST_FIRST,
        limit: int = 50,
        after: int | None = None,
        whole: bool = True,
    ) -> tuple[list[Row], int | None]:
        """Returns one page of the list, and the value of `after` for the next page, None at the
        end. `sort` is a name of `SORTS`, with a minus for descending order. Without `whole` only
        the conversations that are already indexed are searched."""
        which = which or Selection()
        condition, arguments = which.where()
        sign, name = ("DESC", sort[1:]) if sort.startswith("-") else ("ASC", sort)
        if name not in SORTS:
            raise OptionError(f"sort={sort!r}: choose from {', '.join(SORTS)}")
        with self._current(whole and which.needs_words) as connection:
            if sort == NEWEST_FIRST:  # pages by id, so that new episodes do not shift them
                condition, arguments = f"{condition} AND id < ?", [*arguments, after or 2**62]
                order, offset = "id DESC", 0
            else:
                order, offset = f"{SORTS[name]} {sign} NULLS LAST, id DESC", after or 0
            # Sort only the ids: rows are wide, and 100,000 of them may match.
            selected = connection.execute(
                f"SELECT * FROM rows WHERE id IN (SELECT id FROM rows WHERE {condition} "
                f"ORDER BY {order} LIMIT ? OFFSET ?) ORDER BY {order}",
                [*arguments, limit, offset],
            )
            rows = [_row(item) for item in selected]
        if len(rows) < limit:
            return rows, None
        return rows, rows[-1]["id"] if sort == NEWEST_FIRST else offset + limit

    def count(self, which: Selection | None = None, *, whole: bool = True) -> int:
        """Returns the number of matching episodes; `whole` is that of `list`."""
        which = which or Selection()
        condition, arguments = which.where()
        with self._current(whole and which.needs_words) as connection:
            return connection.execute(
                f"SELECT count(*) FROM rows WHERE {condition}", arguments
            ).fetchone()[0]

    def whole(self) -> dict[str, Any]:
        """Returns the number of all episodes as `count`, and the values of mode, status and tag for
        menus. Reads the run's database, which has indexes for them: the page asks for this first,
        and building this index takes seconds for a long run."""
        queries = {
            "modes": "SELECT DISTINCT mode FROM episodes ORDER BY 1",
            "statuses": "SELECT DISTINCT status FROM episodes ORDER BY 1",
        }
        if not is_file(self._path):  # the run is still starting
            return {"count": 0, **{name: [] for name in (*queries, "tags")}}
        with self._reading(), closing(open_for_reading(self._path)) as source:
            values = {n: [row[0] for row in source.execute(query)] for n, query in queries.items()}
            tags = {
                tag for (task,) in source.execute("SELECT task FROM tasks") if (tag := _tag(task))
            }
            count = source.execute("SELECT count(*) FROM episodes").fetchone()[0]
        return {"count": count, **values, "tags": sorted(tags)[:MAX_TAGS]}

    def group(self, step: int, mode: str, group_id: str) -> list[Row]:
        return self._members("step = ? AND mode = ? AND group_id = ?", [step, mode, group_id])

    def step(self, step: int, mode: str) -> list[Row]:
        return self._members("step = ? AND mode = ?", [step, mode])

    def _members(self, condition: str, arguments: Sequence[Any]) -> list[Row]:
        with self._current() as connection:
            rows = connection.execute(
                f"SELECT * FROM rows WHERE {condition} ORDER BY group_id, rollout_index", arguments
            )
            return [_row(item) for item in rows]

    def steps(self) -> list[Row]:
        """Returns each step that has episodes: `step`, `mode`, `num`, `successes`."""
        with self._current() as connection:
            return _counted(connection, "1", [], "step, mode")

    def task(self, task_id: str) -> list[Row]:
        """Returns how one task went at each step: `step`, `mode`, `num`, `successes`, `reward`."""
        with self._current() as connection:
            return _counted(connection, "task_id = ?", [task_id], "step, mode")

    def tasks(self, mode: str) -> list[Row]:
        """Returns each task of a mode with its success at the first and the last step at which it
        was played, and over all steps."""
        with self._current() as connection:
            if mode not in self._tasks_of or self._tasks_of[mode][0] != self._last_id:
                tasks = [dict(row) for row in connection.execute(_TASKS, [mode])]
                self._tasks_of[mode] = (self._last_id, tasks)
            return self._tasks_of[mode][1]

    def held_out(self) -> tuple[list[int], list[Row]]:
        """Returns the steps after which held-out tasks were played, and each task's `num` and
        `successes` at the first and the last of them."""
        with self._current() as connection:
            steps = [
                row[0]
                for row in connection.execute(
                    "SELECT DISTINCT step FROM rows WHERE mode = 'eval' ORDER BY 1"
                )
            ]
            ends = [steps[0], steps[-1]] if steps else [0, 0]
            rows = _counted(
                connection, "mode = 'eval' AND step IN (?, ?)", ends, "task_id, step", "min(query)"
            )
        return steps, rows

    @contextmanager
    def _current(self, needs_words: bool = False) -> Iterator[sqlite3.Connection]:
        """Yields the index, brought up to date with the run."""
        with self._lock, self._reading():
            if is_file(self._path):  # the run is still starting where it does not exist
                with attached_for_reading(self._connection, self._path):
                    if not self._copy_rows():
                        self._empty()
                        self._copy_rows()
        # Words are added chunk by chunk without holding the lock, so that other threads get
        # answers.
        while needs_words and self._add_chunk():
            pass
        with self._lock, self._reading():
            yield self._connection

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turns the errors of a damaged database into a one-line error."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise RecordError(database_problem(self._path, error)) from error

    def _empty(self) -> None:
        self._connection.executescript(_EMPTIED + _TABLES)
        self._last_id = 0
        self._with_words = (0, 0)  # words are indexed for ids above the first, up to the second
        self._tasks_of: dict[str, tuple[int, list[Row]]] = {}  # mode -> (last id then, its tasks)

    def _has_newest_in_run(self) -> bool:
        """Tells whether the run still has the index's newest episode. After a resume its id and
        name may be used again, but its duration in seconds will not be the same."""
        query = "SELECT episode_id, seconds FROM {} WHERE id = ?"
        mine = self._connection.execute(query.format("rows"), [self._last_id]).fetchone()
        theirs = self._connection.execute(query.format("run.episodes"), [self._last_id]).fetchone()
        return theirs is not None and tuple(mine) == tuple(theirs)

    def _copy_rows(self) -> bool:
        """Copies the new episodes; returns False if the run has taken back earlier ones."""
        with _transaction(self._connection) as connection:  # all reads see one state of the file
            if self._last_id and not self._has_newest_in_run():
                return False
            connection.execute(
                f"INSERT INTO rows SELECT {_COPIED} FROM run.episodes WHERE id > ? ORDER BY id",
                [self._last_id],
            )
            last_tagged = connection.execute("SELECT max(tasks_id) FROM tags").fetchone()[0] or 0
            tasks = connection.execute("SELECT id, task FROM run.tasks WHERE id > ?", [last_tagged])
            tags = [(task_id, tag) for task_id, task in tasks if (tag := _tag(task))]
            connection.executemany("INSERT INTO tags VALUES (?, ?)", tags)
            num, last_id = connection.execute("SELECT count(*), max(id) FROM rows").fetchone()
            in_run = connection.execute("SELECT count(*) FROM run.episodes").fetchone()[0]
        self._last_id = last_id or 0
        return num == in_run

    def add_words(self, seconds: float) -> int:
        """Indexes conversations for about this long. Returns how many episodes are not indexed."""
        end_s = time.monotonic() + seconds
        with self._current():
            pass
        while self._add_chunk() and time.monotonic() < end_s:
            pass
        with self._lock:
            query = "SELECT count(*) FROM rows WHERE id <= ? OR id > ?"
            return self._connection.execute(query, self._with_words).fetchone()[0]

    def _add_chunk(self) -> bool:
        """Indexes the conversations of some episodes: new ones first, then those before the indexed
        ones. Returns False when there was nothing to index."""
        with self._lock, self._reading():
            # The indexed ids are (first, last]. It starts out empty, at the newest id.
            first, last = self._with_words if self._with_words[1] else (self._last_id,) * 2
            ids = f"SELECT id FROM rows WHERE id {{}} LIMIT {self._chunk}"
            newer = [last, f"max(id) FROM ({ids.format('> ? ORDER BY id')})"]
            older = [first, f"min(id) FROM ({ids.format('<= ? ORDER BY id DESC')})"]
            bound, query = newer if last < self._last_id else older
            end = self._connection.execute(f"SELECT {query}", [bound]).fetchone()[0]
            if end is None or not is_file(self._path):
                return False
            chunk = (last, end) if last < self._last_id else (end - 1, first)
            with closing(open_for_reading(self._path)) as source:
                turns = source.execute(
                    "SELECT id, query, agent_name, messages, reply FROM episodes "
                    "LEFT JOIN turns USING (episode_id) WHERE id > ? AND id <= ? ORDER BY id",
                    chunk,
                ).fetchall()
            with _transaction(self._connection):
                self._store_words(turns)
            self._with_words = (min(first, chunk[0]), max(last, chunk[1]))
            return True

    def _store_words(self, turns: Sequence[sqlite3.Row]) -> None:
        words: dict[int, list[str]] = {}
        called: set[tuple[str, int]] = set()
        for turn in turns:
            words.setdefault(turn["id"], [turn["query"]])
            if turn["reply"] is None:  # an episode without a call of the model
                continue
            called.update((tool, turn["id"]) for tool in _tools_called(turn["reply"]))
            for message in (*_loaded(turn["messages"], list), _loaded(turn["reply"], dict)):
                if isinstance(message, dict) and message.get("role") != "system":
                    words[turn["id"]].extend(_strings(message))
        spoke = {(turn["agent_name"], turn["id"]) for turn in turns if turn["agent_name"]}
        self._connection.executemany(
            "INSERT INTO said (rowid, words) VALUES (?, ?)",
            ((number, _storable(_spaced(" ".join(texts)))) for number, texts in words.items()),
        )
        self._connection.executemany("INSERT OR IGNORE INTO called VALUES (?, ?)", called)
        self._connection.executemany("INSERT OR IGNORE INTO spoke VALUES (?, ?)", spoke)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Commits everything written within the block, or nothing."""
    connection.execute("BEGIN")
    try:
        yield connection
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _counted(
    connection: sqlite3.Connection, where: str, arguments: Sequence[Any], by: str, query: str = "''"
) -> list[Row]:
    """Counts episodes and successes, grouped by columns. A failed episode is not a success."""
    return [
        dict(row)
        for row in connection.execute(
            f"SELECT {by}, count(*) AS num, avg(reward) AS reward, {query} AS query, "
            f"{_SOLVED} AS successes "
            f"FROM rows WHERE {where} GROUP BY {by} ORDER BY {by}",
            arguments,
        )
    ]


def _row(row: sqlite3.Row) -> Row:
    success = row["is_success"]
    return {**dict(row), "is_success": None if success is None else bool(success)}


def _tag(task: str) -> str | None:
    """Returns the tag of a stored task, if it has one."""
    metadata = _loaded(task, dict).get("metadata")
    tag = metadata.get("tag") if isinstance(metadata, dict) else None
    return _storable(tag) if isinstance(tag, str) else None


def _loaded(text: str, value_type: type) -> Any:
    """Returns the parsed JSON, or an empty value of this type if it is damaged."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return value_type()
    return value if isinstance(value, value_type) else value_type()


def _tools_called(reply: str) -> Iterable[str]:
    calls = _loaded(reply, dict).get("tool_calls") if '"tool_calls"' in reply else None
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str):
            yield _storable(name)


def _strings(value: Any) -> Iterator[str]:
    """Yields the strings of a message except its keys, its role, its ids and its images."""
    # A stack instead of recursion: the model chooses how deep its JSON is.
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            waiting += reversed(item)
        elif isinstance(item, dict):
            unsaid = ("role", "type", "id", "tool_call_id", "image")
            kept = (name for name in item if name not in unsaid)
            waiting += reversed([item[name] for name in kept])


def _storable(text: str) -> str:
    """Returns the text with question marks for lone surrogates, which SQLite cannot store."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _spaced(text: str) -> str:
    """Puts spaces around Chinese and Japanese characters, so that each becomes a word."""
    return re.sub("([\u3040-\u30ff\u3400-\u9fff])", r" \1 ", text)


def _match(text: str) -> str:
    """Returns the FTS5 query for texts in which all words occur as prefixes. A word with
    punctuation in it, such as `print(3*4)`, becomes a phrase."""
    words = [word for word in text.split() if any(map(str.isalnum, word))]
    if not words:
        raise OptionError(f"text={text!r} has no letters or digits to search for")
    return " AND ".join('"{}"*'.format(_spaced(word).strip().replace('"', " ")) for word in words)
