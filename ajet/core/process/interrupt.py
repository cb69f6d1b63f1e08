"""Handles Ctrl-C and SIGTERM: the first one finishes the step, saves and stops; a second one stops
immediately."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALLED = 128
_POLL_S = 0.1


def nothing() -> None:
    """Does nothing, as a default for callbacks."""


class Interrupted(KeyboardInterrupt):
    """Raised in the main thread by the second signal."""


class Interrupt:
    """Whether the run was asked to stop after this step (`requested`), and whether it therefore
    stopped before its last step (`stopped_early`). `on_first` is called at the first signal."""

    def __init__(self, on_first: Callable[[], None] = nothing) -> None:
        self.requested = False
        self.stopped_early = False
        self.exit_code = SIGNALLED + signal.SIGINT
        """As in a shell: 130 for SIGINT, 143 for SIGTERM."""
        self.on_first = on_first

    def wait(self, timeout_s: float = math.inf) -> None:
        """Waits until it is requested. It polls: a handler may not set a `threading.Event`, whose
        lock the main thread may hold inside `wait`, and a signal that comes just before a thread
        blocks does not wake it."""
        until = time.monotonic() + timeout_s
        while not self.requested and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_S))

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = SIGNALLED + number
        if self.requested:
            raise Interrupted
        self.requested = True
        self.on_first()


class StoppableInterrupt(Interrupt):
    """An interrupt that other threads request too, by `stop`. `is_signalled` tells whether a signal
    to this process did. The first signal stops after the step, whatever was asked before."""

    def __init__(self) -> None:
        super().__init__()
        self.is_signalled = False

    def stop(self, *, now: bool) -> None:
        """Stops the run after its step, or `now`; then the main thread must be in `stoppable`."""
        self.requested = True
        main = threading.main_thread().ident
        if now and main is not None:
            # Only a real signal wakes a main thread that waits.
            signal.pthread_kill(main, STOP_SIGNAL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.is_signalled:
            self.requested, self.is_signalled = False, True
        super()._handle(number, frame)


STOP_SIGNAL = signal.SIGUSR1


@contextmanager
def stoppable(interrupt: StoppableInterrupt) -> Iterator[None]:
    """Within the block `interrupt.stop(now=True)` raises `Interrupted` in this, the main thread. A
    stop that comes later has no effect."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    signal.signal(STOP_SIGNAL, end)
    try:
        with catch_interrupts(interrupt):
            yield
    finally:
        signal.signal(STOP_SIGNAL, signal.SIG_IGN)


@contextmanager
def catch_interrupts(interrupt: Interrupt | None = None) -> Iterator[Interrupt]:
    """Makes SIGINT and SIGTERM set `requested` within the block; a second one raises
    `Interrupted`."""
    interrupt = interrupt or Interrupt()
    before = {
        number: signal.signal(number, interrupt._handle)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_from_user_code(error: BaseException) -> bool:
    """Returns whether user code raised this KeyboardInterrupt itself. Only `catch_interrupts` can
    tell; without it, the interrupt is taken for a Ctrl-C."""
    handler = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return isinstance(handler, Interrupt) and not isinstance(error, Interrupted)
