"""The console that prints everything on the screen.

It escapes control sequences in texts of an episode, which could clear the screen or overwrite
earlier lines. It has no emoji codes: rich would turn the address fd00:a::1 into one.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from ajet.core.text.plain_value import printable


class Console(RichConsole):
    """Rich's console with escaped control characters and without emoji codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None:  # else it comes from rich itself, not from a text
                segment = Segment(printable(segment.text), segment.style)
            yield segment

    def on_broken_pipe(self) -> None:
        """Ends the command like Ctrl-C when its output is closed, as by `head`. Rich would raise
        SystemExit here, in the middle of an episode."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        signal.raise_signal(signal.SIGINT)


def can_redraw(console: RichConsole) -> bool:
    """Returns whether a live display can redraw lines: on a terminal, but not in a file (even with
    FORCE_COLOR) and not in a notebook's cell."""
    if console.file.isatty():
        return console.is_interactive and not in_notebook(os.environ)
    return console.is_interactive and not os.environ.get("FORCE_COLOR")


def in_notebook(environ: Mapping[str, str]) -> bool:
    """Returns whether a notebook's cell started the process. Its pseudo-terminal ignores movements
    of the cursor."""
    return "JPY_PARENT_PID" in environ or "inline" in environ.get("MPLBACKEND", "")
