"""How instances follow from seeds: whether an instance belongs to a split, and a private state for
packages that draw from the global generators."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ajet.core.seeding import derive

lock = threading.Lock()
"""Guards the global generators, which belong to the whole process."""
VALIDATION_ONE_IN = 5


class PrivateRandom:
    """A state that is exchanged for the process's during `with private.active():`, so that
    `random.choice` in it follows from the seed alone. Other threads must not draw from the global
    generators meanwhile (ajet's do not)."""

    def __init__(self, seed: int) -> None:
        self._state: Any = random.Random(seed).getstate()
        self._numpy_state: Any = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def active(self) -> Iterator[None]:
        with lock:
            self._swap()
            try:
                yield
            finally:
                self._swap()

    def _swap(self) -> None:
        """Exchanges the private state and that of the global generators."""
        state, numpy_state = random.getstate(), np.random.get_state()
        random.setstate(self._state)
        np.random.set_state(self._numpy_state)
        self._state, self._numpy_state = state, numpy_state


def belongs_to(split: str | None, *instance: int | str, of: str = "split") -> bool:
    """Returns whether an instance may be drawn for the split; None takes any. A hash of its content
    decides, so training never sees an instance of validation, for any seeds and any length of the
    run. `of` is the first part of the hashed path."""
    is_validation = derive(of, *instance) % VALIDATION_ONE_IN == 0
    return split is None or is_validation == (split == "validation")
