"""Writes the run's own log, logs/run.log: every line of any part of it, whatever the screen shows.

Keys to the model are cut to their prefix, control characters are spelled out, and tracebacks show
no values.

Not covered: numbers (metrics.py), episodes (episode_store.py), what the user's code prints.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from ajet.core.plain_value import printable
from ajet.core.redaction import redact

if TYPE_CHECKING:
    from loguru import Record

FORMAT = "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}"


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Writes log lines to `path` as well, after those of earlier attempts of the run."""
    sink = logger.add(
        path, level="DEBUG", format=FORMAT, filter=_redacted, encoding="utf-8", diagnose=False
    )
    try:
        yield
    finally:
        logger.remove(sink)


def _redacted(record: "Record") -> bool:
    record["message"] = printable(redact(record["message"]))
    return True
