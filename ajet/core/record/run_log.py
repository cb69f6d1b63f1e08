"""Writes log lines to the screen and to logs/run.log.

Secrets are removed, control characters are spelled out, and tracebacks show no values of variables.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loguru import logger

from ajet.core.record.atomic_file import writing
from ajet.core.text.plain_value import printable
from ajet.core.text.redaction import redact

FORMAT = "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}"


def begin_screen_log(verbose: bool) -> None:
    """Shows warnings on the screen, one short line each; with `verbose` everything."""

    def write(line: str) -> None:
        # `sys.stderr` is looked up for each line, because a live display redirects it.
        sys.stderr.write(printable(redact(line)))

    logger.remove()
    logger.add(
        write,
        level="DEBUG" if verbose else "WARNING",
        diagnose=False,
        format=lambda record: f"{record['level'].name.lower()}: {{message}}\n",
    )


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Writes every line to `path` as well, whatever the screen shows, after those of earlier
    attempts of the run. A disk that takes no more of them does not end the run: a warning follows
    when the log is closed."""
    problem: str | None = None
    with writing(path):
        file = path.open("ab", buffering=0)

    def write(line: str) -> None:
        nonlocal problem
        try:
            file.write(printable(redact(line)).encode("utf-8", "backslashreplace"))
        except OSError as error:
            problem = problem or error.strerror

    with file:
        sink = logger.add(write, level="DEBUG", format=FORMAT, diagnose=False)
        try:
            yield
        finally:
            logger.remove(sink)
            if problem is not None:
                logger.warning(f"{path} lacks lines of this attempt: {problem}; check its disk")
