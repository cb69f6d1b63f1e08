"""The versions that the trainer and the explorer of a run have reached, on one event loop.

trainer  ── trained, published ──>  explorer        both wait for `changed`, look again, and
         <── a group is ready ────                  wait again if there is nothing to do
"""

import asyncio


class VersionState:
    """`trained` is the trainer's version, `published` the version of the explorer's weights. No
    episode begins before the first publication."""

    def __init__(self, version: int) -> None:
        self.trained = version
        self.published: int | None = None
        self.is_over = False
        self._changed = asyncio.Event()

    @property
    def changed(self) -> asyncio.Event:
        """The event of the next change. Take it before reading the state, or a change in between is
        missed."""
        return self._changed

    def notify(self) -> None:
        """Wakes everyone waiting for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def publish(self, version: int) -> None:
        """Records that the explorer has the weights of this version."""
        self.published = version
        self.notify()

    def end(self) -> None:
        """Records that the trainer takes no more groups."""
        self.is_over = True
        self.notify()
