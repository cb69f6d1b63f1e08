"""Ends the process even if threads of the user's code do not end.

Python joins every thread before it exits, so one tool call that blocks forever would keep a
finished run alive. The run has written and closed its files by then.
"""

import atexit
import os
import sys
import threading

GRACE_S = 3.0


def end_within(exit_code: int, grace_s: float = GRACE_S) -> None:
    """Gives the interpreter `grace_s` to join the remaining threads. Must be called last."""
    threads_are_gone = threading.Event()
    # Exit functions run after the threads were joined, and the last one registered runs first.
    atexit.register(threads_are_gone.set)

    def watch() -> None:
        if threads_are_gone.wait(grace_s):
            return
        atexit._run_exitfuncs()  # os._exit would skip these; they end this process's children
        sys.stdout.flush()
        print("notice: a thread of the workflow or a tool never ended", file=sys.stderr)
        sys.stderr.flush()
        os._exit(exit_code)

    threading.Thread(target=watch, name="ajet-end", daemon=True).start()
