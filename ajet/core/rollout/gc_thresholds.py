"""Makes Python's garbage collection rarer while hundreds of agents run.

Agent frameworks make many objects that live as long as their episode. With Python's thresholds each
is visited again and again: a quarter of LangGraph's CPU time. Reference counts free almost all.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 100)
"""A young collection every 50,000 objects, not every 700."""


@contextmanager
def infrequent_gc() -> Iterator[None]:
    """Raises the collection thresholds within the block; a collector that is off stays off."""
    before = gc.get_threshold()
    if before[0] == 0:  # collection is off
        yield
        return
    gc.set_threshold(*map(max, before, THRESHOLDS))
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def lasting_imports() -> Iterator[None]:
    """For a command's imports of torch and transformers, whose objects stay: collection is rare
    within the block, and does not visit again what exists after it. The collection at the end of
    the process would otherwise take a second. Later blocks of a process freeze nothing: there may
    be models by then, which must be freed."""
    with infrequent_gc():
        yield
    if gc.get_freeze_count() == 0:
        gc.freeze()
