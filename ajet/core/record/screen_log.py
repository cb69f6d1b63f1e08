"""Configures the log on the screen: warnings, one short line each; everything with --verbose."""

import sys

from loguru import logger

from ajet.core.text.plain_value import printable
from ajet.core.text.redaction import redact


def begin_screen_log(verbose: bool) -> None:
    logger.remove()
    logger.add(
        _write,
        level="DEBUG" if verbose else "WARNING",
        diagnose=False,
        format=lambda record: f"{record['level'].name.lower()}: {{message}}\n",
    )


def _write(line: str) -> None:
    # `sys.stderr` is looked up for each line, because a live display redirects it.
    sys.stderr.write(printable(redact(line)))
