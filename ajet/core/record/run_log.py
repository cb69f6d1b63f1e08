"""Writes logs/run.log: every line that is logged, whatever the screen shows.

Secrets are removed, control characters are spelled out, and tracebacks show no values of variables.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loguru import logger

from ajet.core.record.atomic_file import writing
from ajet.core.text.plain_value import printable
from ajet.core.text.redaction import redact

FORMAT = "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}"


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Writes log lines to `path` as well, after those of earlier attempts of the run. A disk that
    takes no more of them does not end the run: a warning follows when the log is closed."""
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
