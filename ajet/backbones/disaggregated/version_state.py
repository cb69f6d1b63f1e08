"""Which version the trainer and the explorer of a run are at: what each must know of the other.

    trainer  ── trained, published ──>  explorer        both wait for `changed`, look again, and
             <── a group is there ────                  wait again if nothing is for them

One event loop. Not covered: two processes (split_run.py).
"""

import asyncio


class VersionState:
    """`trained` is the trainer's version, `published` that of the weights that the explorer has:
    no episode begins before the first are published."""

    def __init__(self, version: int) -> None:
        self.trained = version
        self.published: int | None = None
        self.is_over = False
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """Is set at the next change. Ask for it before looking at the state: a change between the
        two would be missed."""
        return self._changed

    def notify(self) -> None:
        """Something has changed."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def publish(self, version: int) -> None:
        """The explorer has the weights of this version."""
        self.published = version
        self.notify()

    def end(self) -> None:
        """The trainer takes no more groups."""
        self.is_over = True
        self.notify()
