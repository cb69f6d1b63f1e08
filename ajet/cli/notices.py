"""Prints what a command says beside its result: one line for each setting that has no effect.

Not covered: warnings of the run itself (screen_log.py).
"""

from collections.abc import Iterable

import typer

from ajet.core.redaction import redact


def show_notices(notices: Iterable[str], *, err: bool = True) -> None:
    """Prints to stderr, so that stdout holds only the command's result."""
    for notice in notices:
        typer.echo(redact(f"notice: {notice}"), err=err)
