"""Ends the process although threads of the user's code do not end.

Python joins every thread before it exits, so one tool call that blocks for ever would keep a
finished run alive. Everything of the run is written and closed by then.
"""

import atexit
import os
import sys
import threading

GRACE_S = 3.0


def end_within(exit_code: int, grace_s: float = GRACE_S) -> None:
    """Gives the interpreter's own end `grace_s` for the threads that are left. It must be called
    last."""
    threads_are_gone = threading.Event()
    atexit.register(
        threads_are_gone.set
    )  # runs after the threads were joined, and before the other exit functions

    def watch() -> None:
        if threads_are_gone.wait(grace_s):
            return
        atexit._run_exitfuncs()  # os._exit would skip these; they end the children of this process
        sys.stdout.flush()
        print(
            "notice: a thread of the workflow or a tool never ended: left behind", file=sys.stderr
        )
        sys.stderr.flush()
        os._exit(exit_code)

    threading.Thread(target=watch, name="ajet-end", daemon=True).start()
