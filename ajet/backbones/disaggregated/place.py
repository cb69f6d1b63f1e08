"""Where a run of two halves stands: what each of them must know of the other.

    trainer  ── trained, published ──>  explorer        both wait for the bell, look again, and
             <── a group is there ────                  wait again if nothing is for them

One event loop. Not covered: two processes (apart.py).
"""

import asyncio


class Place:
    """`trained` is the trainer's version, `published` that of the weights that the explorer has:
    nothing is explored before the first are published."""

    def __init__(self, version: int) -> None:
        self.trained = version
        self.published: int | None = None
        self.is_over = False
        self._bell = asyncio.Event()

    @property
    def bell(self) -> asyncio.Event:
        """The next ring; ask for it before looking, or one between the two is missed."""
        return self._bell

    def ring(self) -> None:
        """Something has changed."""
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def publish(self, version: int) -> None:
        self.published = version
        self.ring()

    def end(self) -> None:
        """The trainer takes no more."""
        self.is_over = True
        self.ring()
