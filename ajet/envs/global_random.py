"""Gives environments that draw from the global generators of `random` and numpy a state of their
own.

    private = PrivateRandom(seed)
    with private.active():        # one environment of the process at a time
        game.step(action)         # `random.choice` in it follows from the seed alone

The process's own state is saved and restored. Not covered: other threads that draw from the global
generators meanwhile (ajet's do not), and a call that hangs, which holds the lock.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

lock = threading.Lock()
"""Guards the global generators, which belong to the whole process."""


class PrivateRandom:
    """Holds the random state of one environment, for both global generators."""

    def __init__(self, seed: int) -> None:
        numpy_state = np.random.RandomState(seed % 2**32)
        self._state: tuple[Any, Any] = random.Random(seed).getstate(), numpy_state.get_state()

    @contextmanager
    def active(self) -> Iterator[None]:
        with lock:
            outside = _current()
            _restore(self._state)
            try:
                yield
            finally:
                self._state = _current()
                _restore(outside)


def _current() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _restore(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
