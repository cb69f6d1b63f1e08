"""Provides `bp("TAG")`, a breakpoint in the user's code that stops only if `--debug` names it.

    from ajet import bp
    bp("after-tool")                        ajet --conf x.yaml --debug "after-tool|judge"

On backbone debug it opens pdb, or the debugger of the editor that launched the process. In a Ray
worker it opens Ray's debugger (`ray debug` in another terminal); there one `next` leaves this file.
"""

import os
import sys

TAGS_VARIABLE = "AJET_DEBUG_TAGS"
"""Set by the command line; Ray passes it to processes on other nodes."""


def bp(tag: str) -> None:
    """Stops here if `--debug` names this tag."""
    if tag not in debug_tags(os.environ.get(TAGS_VARIABLE, "")):
        return
    is_default_hook = sys.breakpointhook is sys.__breakpointhook__
    if is_default_hook and not os.environ.get("PYTHONBREAKPOINT"):
        from pdb import Pdb

        Pdb().set_trace(sys._getframe(1))  # stops in the caller, not here
    else:
        sys.breakpointhook()


def debug_tags(text: str) -> tuple[str, ...]:
    """Splits `A|B` into A and B."""
    return tuple(dict.fromkeys(tag.strip() for tag in text.split("|") if tag.strip()))
