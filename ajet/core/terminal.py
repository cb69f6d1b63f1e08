"""Provides the console that everything on the screen is printed with.

Texts of an episode may hold control sequences, which a terminal would obey: they could clear the
screen, rename the window, or write over earlier lines. This console spells them out. Colours and
the live display are its own and stay. Names between colons stay too: of the address fd00:a::1, rich
would make an emoji.

Not covered: what the user's code prints itself; lines of the log (record/screen_log.py).
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from ajet.core.plain_value import printable


class Console(RichConsole):
    """Prints as rich does, with control characters in texts spelled out and no emoji codes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_control = segment.control is not None
            yield segment if is_control else Segment(printable(segment.text), segment.style)


def can_redraw(console: RichConsole) -> bool:
    """Tells whether lines that were printed can be written over, as a live display does: on a
    terminal, but not in a file, even if FORCE_COLOR is set, and not in a notebook's cell."""
    if console.file.isatty():
        return console.is_interactive and not in_notebook(os.environ)
    return console.is_interactive and not os.environ.get("FORCE_COLOR")


def in_notebook(environ: Mapping[str, str]) -> bool:
    """Tells whether the process was started by a notebook's cell. A cell gives its commands a
    pseudo-terminal, prints what they write, and obeys no movement of the cursor."""
    return "JPY_PARENT_PID" in environ or "inline" in environ.get("MPLBACKEND", "")
