"""Begins a command: its log on the screen, and one line for each setting that has no effect.

Not covered: warnings of the run itself (screen_log.py).
"""

from collections.abc import Iterable

import typer

from ajet.core.redaction import redact


def begin_command(verbose: bool) -> None:
    """Sets up what every command that runs episodes needs of this process."""
    from ajet.core.descriptors import raise_descriptor_limit
    from ajet.core.record.screen_log import begin_screen_log

    begin_screen_log(verbose)
    raise_descriptor_limit()


def show_notices(notices: Iterable[str], *, err: bool = True) -> None:
    """Prints to stderr, so that stdout holds only the command's result."""
    for notice in notices:
        typer.echo(redact(f"notice: {notice}"), err=err)
