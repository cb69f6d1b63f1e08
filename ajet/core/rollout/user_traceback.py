"""An exception as the user sees it: from their own line on.

    Traceback (most recent call last):
      File "workflow.py", line 31, in execute           <- first frame that is not this package's
        answer = int(reply["content"])
    ValueError: invalid literal for int() …

Left out are the frames by which this package got there. Everything that the user's code called,
this package included, stays.
"""

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

_OWN = str(Path(__file__).parents[2])
_STDLIB = sysconfig.get_path("stdlib")


def user_traceback(error: BaseException) -> str | None:
    """The text of the traceback; None where no code of the user's was running."""
    frames = _from_user(error.__traceback__)
    if frames is None:
        return None
    return "".join(traceback.format_exception(type(error), error, frames))


def _from_user(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and _leads_there(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _leads_there(filename: str) -> bool:
    in_stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
    return filename.startswith((_OWN, "<")) or in_stdlib
