"""The run's own log, logs/run.log: every line of any part of it, whatever the screen shows.

Not covered: numbers (metrics.py), episodes (episode_store.py), what the user's code prints.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loguru import logger

FORMAT = "{time:YYYY-MM-DD HH:mm:ss} {level: <7} {message}"


@contextmanager
def run_log(path: Path) -> Iterator[None]:
    """Lines go to `path` as well, after those of earlier sittings."""
    sink = logger.add(path, level="DEBUG", format=FORMAT, encoding="utf-8")
    try:
        yield
    finally:
        logger.remove(sink)
