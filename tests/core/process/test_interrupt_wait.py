import signal

from ajet.core.process.interrupt import Interrupt, catch_interrupts


def test_waiting_ends_whenever_the_signal_comes():
    """With `threading.Event` in place of `wait`, a round of these hangs."""
    for round_ in range(300):
        with catch_interrupts() as interrupt:
            before = signal.signal(signal.SIGALRM, interrupt._handle)
            signal.setitimer(signal.ITIMER_REAL, (1 + round_ % 30) * 1e-6)
            interrupt.wait()
            signal.signal(signal.SIGALRM, before)
        assert interrupt.requested


def test_waiting_ends_by_its_limit():
    interrupt = Interrupt()
    interrupt.wait(0.01)
    assert not interrupt.requested
