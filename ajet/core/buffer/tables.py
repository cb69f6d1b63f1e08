"""The tables of the buffer; each row belongs to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ajet.core.errors import CheckpointError, ConfigError, PackageMissing
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import first_line

metadata = MetaData()
# place  state            version newest counts priority uses at_step body
# 17     begun               4      -      1       -     0      -      -
# 16     ready               4      4      1      0.0    0      -    bytes
# 12     taken, trained      3      4      1      0.0    1      5    bytes
#  9     expired             1      1      1      0.0    0      5    bytes
#
# `place` is the group's plan index (buffer.py). `version` is that of its oldest token; for a group
# that runs, that of the weights it began with. A selection left out a group with `counts` 0: it is
# taken with a batch for the record.
groups = Table(
    "ajet_groups",
    metadata,
    Column("run", String(200), primary_key=True),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("task", Integer),
    Column("state", String(8), nullable=False),
    Column("version", Integer, nullable=False),
    Column("newest", Integer, nullable=False),
    Column("counts", Boolean, nullable=False, default=True),
    Column("priority", Float, nullable=False, default=0.0),
    Column("uses", Integer, nullable=False, default=0),
    Column("at_step", Integer),
    Column("body", LargeBinary),
    Index("ajet_groups_by_state", "run", "state", "counts"),
)
# One row for each step that took a group.
uses = Table(
    "ajet_uses",
    metadata,
    Column("run", String(200), primary_key=True),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("step", Integer, primary_key=True, autoincrement=False),
)
# Messages between explorer and trainer.
notes = Table(
    "ajet_notes",
    metadata,
    Column("run", String(200), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("value", String, nullable=False),
)


def open_engine(url: str) -> Engine:
    """Opens the database at `url` and creates missing tables. Raises a CheckpointError for a file
    that exists and cannot be used, else a ConfigError that does not show the password."""
    key = "trinity.buffer.url"
    try:
        parsed = make_url(url)
    except ArgumentError as error:  # its message holds the whole text: it is not repeated
        raise ConfigError(
            f"{key}: not a database's address; write postgresql://…", code=Code.BUFFER_UNUSABLE
        ) from error
    try:
        engine = _create_engine(parsed)
        try:
            metadata.create_all(engine)
        except (IntegrityError, ProgrammingError):
            # Another process created them between this one's look and its own attempt.
            metadata.create_all(engine)
    except ImportError as error:
        raise PackageMissing(
            f"{key}: the driver of {redacted(url)} is not installed ({error.name}); for "
            "PostgreSQL pip install 'psycopg[binary]' and write postgresql+psycopg://…"
        ) from error
    except (SQLAlchemyError, UnicodeDecodeError) as error:
        if parsed.get_backend_name() == "sqlite" and Path(parsed.database or "").exists():
            reason = first_line(str(getattr(error, "orig", None) or error))
            raise CheckpointError(
                f"{parsed.database} cannot be used: {reason}; fix that, or move it away, and "
                "groups that were finished and not trained are lost",
                code=Code.BUFFER_UNUSABLE,
            ) from error
        raise ConfigError(
            f"{key}: {redacted(url)} cannot be opened ({type(error).__name__}); is it running, "
            "and are its name and password right?",
            code=Code.BUFFER_UNUSABLE,
        ) from error
    return engine


def redacted(url: str) -> str:
    """Returns the URL without user, password and options, any of which may be a secret."""
    parsed = make_url(url)
    return URL.create(
        parsed.drivername, host=parsed.host, port=parsed.port, database=parsed.database
    ).render_as_string()


def _create_engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, hide_parameters=True)
    options: dict[str, Any] = {"connect_args": {"timeout": 60.0, "check_same_thread": False}}
    if url.database in (None, "", ":memory:"):
        options["poolclass"] = StaticPool  # a second connection would see another, empty database
    engine = create_engine(url, hide_parameters=True, **options)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver would begin transactions at the first write, and of two that both read first, one
    # would be refused. `_begin_sqlite` begins them instead.
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _begin_sqlite(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
