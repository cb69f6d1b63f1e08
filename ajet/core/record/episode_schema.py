"""Defines the tables of `episodes.sqlite`, version 3 (`PRAGMA user_version`).

`episodes`: one row an episode. `step` counts from 1 (0: before training), `mode` is train, eval or
baseline (ReMax's greedy ones), `status` an `EpisodeStatus`, `ended_as` what it was before a policy
for failures or a selection replaced it; `truncation` is {"limit": …, "detail": …} where a limit
ended the episode (JSON); `agent_rewards` has the reward of each trained agent by its name (JSON);
files of earlier releases lack these two columns, and the first write adds them;
`advantage` is the mean over its trained tokens (NULL: not trained); `seconds` is from its first
call to its last answer; `seed` is the environment's.
`tasks_id` names a row of `tasks`, which stores each distinct task once, as the workflow was given
it (JSON; NULL where JSON would not give it back as it was).
JSON columns: `reward_breakdown`, `metadata` (what the workflow returned), `log_metrics`, `timings`.
The last holds seconds by phase (`workflow_s`, `model_s`, `judge_s`), `began_unix_s`, when the
attempt began, and `calls`: [name, started_s, ended_s] of each call of a tool, an environment or the
judge, in the clock of the turns. Older files have neither of the last two.

`turns`: one row a call of the model. Two things repeat from call to call and are stored once:

    base_turn      an earlier turn of the same agent, or NULL
    messages_kept  this turn's messages begin with that many of the base's (messages + reply) …
    messages       … and these follow (JSON)
    prompt_kept    its prompt ids begin with that many of the base's (prompt + sampled ids) …
    prompt_ids     … and these follow (zlib over int32; `ids_blob`)

so a conversation of n turns takes space for n new parts and not for n²/2. `tools_id` names a row of
`tools`, which stores each distinct list of tools once. Blobs are little-endian and have one entry
for each sampled token: `token_ids` int32, `logprobs` float32, `advantages` float32 and `loss_mask`
uint8 (both NULL where nothing was trained). `reward` is the turn's own, `state_key` the
state it was taken in (NULL where the agent said nothing). Times are seconds since the attempt
began.

`trained_tokens`: what the update computed for the sampled tokens of a turn, in its first pass over
them (trajectory/trained_tokens.py): float32 blobs, NULL where no token of the turn has the number,
NaN where one has not. `cuts` is JSON: the tokens on which a bound of the loss acted, by its name,
or NULL. Turns that were not computed have no row: those of failed episodes and of evaluations, and
where no KL and no entropy is in the loss those of groups without signal. Files of earlier releases
lack the table; the first write adds it.

    number               there if                                                      bytes a token
    policy_logprobs      the update computed the token                                             4
    entropies            the update computed the token                                             4
    ratios               it was sampled, not given                                                 4
    reference_logprobs   kl_loss_coef is not 0 (use_kl_loss), or use_kl_in_reward                  4

A file of another version is refused.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ajet.core.errors import CheckpointError, RecordError
from ajet.core.errors.codes import Code
from ajet.core.images.image_ids import has_images
from ajet.core.record.run_folder import is_file
from ajet.core.text.plain_value import printable
from ajet.core.trajectory.trained_tokens import NUMBERS

VERSION = 3

SCHEMA = """
CREATE TABLE episodes (
    id INTEGER PRIMARY KEY,
    episode_id TEXT NOT NULL UNIQUE,
    step INTEGER NOT NULL,
    mode TEXT NOT NULL,
    group_id TEXT NOT NULL,
    rollout_index INTEGER NOT NULL,
    task_id TEXT NOT NULL,
    status TEXT NOT NULL,
    ended_as TEXT NOT NULL,
    truncation TEXT,
    seed INTEGER NOT NULL,
    tasks_id INTEGER REFERENCES tasks (id),
    reward REAL,
    is_success INTEGER,
    num_turns INTEGER NOT NULL,
    num_sampled_tokens INTEGER NOT NULL,
    min_policy_version INTEGER,
    max_policy_version INTEGER,
    seconds REAL NOT NULL,
    advantage REAL,
    query TEXT NOT NULL,
    error TEXT,
    reward_breakdown TEXT NOT NULL,
    agent_rewards TEXT,
    timings TEXT NOT NULL,
    metadata TEXT NOT NULL,
    log_metrics TEXT NOT NULL
);
CREATE INDEX episodes_by_step ON episodes (step, mode);
CREATE INDEX episodes_by_status ON episodes (status);
CREATE INDEX episodes_by_success ON episodes (is_success);
CREATE INDEX episodes_by_mode ON episodes (mode);
CREATE INDEX episodes_by_reward ON episodes (reward);
CREATE TABLE tasks (id INTEGER PRIMARY KEY, task TEXT NOT NULL UNIQUE);
CREATE TABLE tools (id INTEGER PRIMARY KEY, tools TEXT NOT NULL UNIQUE);
CREATE TABLE turns (
    episode_id TEXT NOT NULL,
    turn_index INTEGER NOT NULL,
    agent_name TEXT NOT NULL,
    target_tag TEXT NOT NULL,
    trainable INTEGER NOT NULL,
    base_turn INTEGER,
    messages_kept INTEGER NOT NULL,
    messages TEXT NOT NULL,
    tools_id INTEGER REFERENCES tools (id),
    reply TEXT NOT NULL,
    prompt_kept INTEGER NOT NULL,
    prompt_ids BLOB NOT NULL,
    token_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    advantages BLOB,
    loss_mask BLOB,
    finish_reason TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    reward REAL,
    state_key TEXT,
    started_s REAL NOT NULL,
    ended_s REAL NOT NULL,
    notes TEXT NOT NULL,
    PRIMARY KEY (episode_id, turn_index)
);
"""


def _columns_of(table: str) -> tuple[str, ...]:
    """Returns the columns of a table of `SCHEMA`, without its row number."""
    body = SCHEMA.partition(f"CREATE TABLE {table} (")[2].partition("\n);")[0]
    names = (line.split()[0] for line in body.strip().splitlines())
    return tuple(name for name in names if name not in ("id", "PRIMARY"))


EPISODE_COLUMNS = _columns_of("episodes")
TURN_COLUMNS = _columns_of("turns")
TRAINED_COLUMNS = ("episode_id", "turn_index", *NUMBERS, "cuts")
_ADDED = """
CREATE TABLE IF NOT EXISTS trained_tokens (
    episode_id TEXT NOT NULL,
    turn_index INTEGER NOT NULL,
    policy_logprobs BLOB,
    entropies BLOB,
    ratios BLOB,
    reference_logprobs BLOB,
    cuts TEXT,
    PRIMARY KEY (episode_id, turn_index)
);
"""


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Opens the file, and makes it if absent. It has a write-ahead log, so readers never wait."""
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if not _is_current(connection, path):
            connection.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        connection.execute(_ADDED)
        for name in ("truncation", "agent_rewards"):
            if name not in columns(connection):
                connection.execute(f"ALTER TABLE episodes ADD COLUMN {name} TEXT")
    except sqlite3.Error as error:
        raise RecordError(database_problem(path, error)) from error
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Opens a read-only connection, which sees each step once it is written."""
    if not is_file(path):
        raise CheckpointError(_not_a_run(path), code=Code.RUN_NOT_FOUND)
    try:
        connection, is_record = _read_only(path, "mode=ro")
    except sqlite3.OperationalError as error:
        connection, is_record = _unwritable(path, error)
    except sqlite3.DatabaseError as error:
        raise RecordError(database_problem(path, error)) from error
    if not is_record:
        raise CheckpointError(f"{path} holds no episodes", code=Code.RUN_NOT_FOUND)
    try:  # A view may compute rows without end. No run writes one.
        view = connection.execute("SELECT name FROM sqlite_master WHERE type = 'view'").fetchone()
    except sqlite3.DatabaseError as error:  # a damaged schema
        raise RecordError(database_problem(path, error)) from error
    if view is not None:
        raise RecordError(
            f"{path} has a view ({printable(view[0])}), which no run writes: don't use this file"
        )
    connection.row_factory = sqlite3.Row
    return connection


@contextmanager
def attached_for_reading(connection: sqlite3.Connection, path: Path) -> Iterator[None]:
    """Attaches the file as schema `run` of another connection, which was opened with `uri`, so that
    statements copy rows without Python objects."""
    open_for_reading(path).close()  # raises for a file that should not be read
    for options in ("mode=ro", "immutable=1"):  # as open_for_reading tries them
        connection.execute("ATTACH ? AS run", [f"{path.absolute().as_uri()}?{options}"])
        try:
            connection.execute("SELECT 1 FROM run.episodes").fetchone()
            break
        except sqlite3.OperationalError:
            if options == "immutable=1":
                raise
            connection.execute("DETACH run")
    try:
        yield
    finally:
        connection.execute("DETACH run")


def _not_a_run(path: Path) -> str:
    """Returns an error text that names the runs below the folder, if there are any."""
    folder = path.parent
    if not folder.is_dir():
        return f"{folder}: no such folder; give the folder of a run, as launcher_record/NAME"
    below = sorted(file.parent for file in folder.glob(f"*/{path.name}"))
    advice = "give one, as launcher_record/NAME"
    if below:
        advice = f"it holds {', '.join(run.name for run in below[:5])}"
    return f"{folder}: not the folder of a run (no {path.name}); {advice}"


def _read_only(path: Path, options: str) -> tuple[sqlite3.Connection, bool]:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)
    return connection, _is_current(connection, path)


def _unwritable(path: Path, error: sqlite3.Error) -> tuple[sqlite3.Connection, bool]:
    """Opens a file whose folder cannot be written to. With a write-ahead log SQLite needs to make
    files there even for reading; without one the file is complete and cannot change."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:
        raise RecordError(
            f"{path} cannot be read: {error}; it has a write-ahead log, so copy the run folder to "
            "a place that can be written to"
        ) from error
    try:
        return _read_only(path, "immutable=1")
    except sqlite3.Error as failed:
        raise RecordError(database_problem(path, failed)) from failed


def database_problem(path: Path, error: sqlite3.Error) -> str:
    """Returns what is wrong with a database and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code, without details
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT):
        return (
            f"{path} is damaged: {error}; move it away to continue without its episodes, or "
            "restore a copy"
        )
    if path.is_dir():
        return f"{path} is a folder, where a file is written; move it away"
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return f"{path} cannot be written or opened: {error}; check its permissions"
    if code == sqlite3.SQLITE_FULL:
        return f"{path} cannot be written: {error}; make room, then resume"
    if code == sqlite3.SQLITE_IOERR:
        return (
            f"{path} cannot be read or written: {error}; make room, or repair the disk, then resume"
        )
    if code == sqlite3.SQLITE_BUSY:
        return (
            f"{path} cannot be used: {error}; another process has it, or its disk has no locks: "
            "end that process, or choose another place with --exp-dir"
        )
    return f"{path} cannot be used: {error}"


def columns(connection: sqlite3.Connection) -> list[str]:
    """Returns the columns that the file's table of episodes has."""
    return [row[1] for row in connection.execute("PRAGMA table_info(episodes)")]


def _is_current(connection: sqlite3.Connection, path: Path) -> bool:
    """Returns True for a file of this version and False for an empty one. Raises CheckpointError
    for another version."""
    version: Any = connection.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise CheckpointError(
            f"{path} has format {version}, this ajet reads format {VERSION}; "
            "use the ajet that wrote it, or another run folder",
            code=Code.RECORD_VERSION,
        )
    return version == VERSION


# The mark is the least int32, which no id is, so blobs of earlier releases read as before.
_WIDE = np.array([np.iinfo(np.int32).min], "<i4").tobytes()


def ids_blob(ids: Sequence[int]) -> bytes:
    """Returns ids as int32 or, where one is an image's, as int64 after a mark that is no id."""
    if has_images(ids):
        return _WIDE + np.asarray(ids, "<i8").tobytes()
    return np.asarray(ids, "<i4").tobytes()


def ids_of_blob(blob: bytes) -> NDArray[Any]:
    """Returns the ids of an `ids_blob`."""
    if blob.startswith(_WIDE):
        return np.frombuffer(blob, "<i8", offset=len(_WIDE))
    return np.frombuffer(blob, "<i4")
