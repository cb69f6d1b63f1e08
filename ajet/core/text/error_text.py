"""Formats an exception: one line for the record, or a traceback that starts in the user's code.

A traceback omits the frames of ajet above the user's code, and keeps all frames below it.
"""

import inspect
import os
import re
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import CoroutineType
from typing import Any

from ajet.core.process.descriptors import NONE_LEFT, is_out_of_descriptors
from ajet.core.text.install import install_command
from ajet.core.text.plain_value import plain_text, printable, type_name
from ajet.core.text.redaction import redact

MAX_MESSAGE_LENGTH = 500
"""The number of characters of a message that are recorded: some contain a whole web page."""
MAX_MESSAGE_READ = 100_000
EXTRAS = {
    module: extra
    for extra, modules in {
        "train": "aiohttp docstring_parser fastapi gymnasium huggingface_hub jsonschema "
        "math_verify openai PIL safetensors tensorboard tokenizers torch "
        "transformers websockets",
        "agentscope": "agentscope",
        "datasets": "datasets pyarrow",
        "documents": "docx pypdf",
        "gguf": "gguf",
        "langgraph": "langchain langchain_core langgraph",
        "lora": "peft",
        "mcp": "mcp",
        "mlflow": "mlflow",
        "otlp": "opentelemetry",
        "prometheus": "prometheus_client",
        "prompts": "gepa",
        "ray": "psutil ray sqlalchemy",
        "reasoning-gym": "reasoning_gym",
        "scienceworld": "scienceworld",
        "swanlab": "swanlab",
        "textarena": "textarena",
        "textworld": "textworld",
        "tinker": "tinker",
        "wandb": "wandb",
    }.items()
    for module in modules.split()
}
"""Maps a module to the extra of ajet that installs it (pyproject.toml)."""
_OWN_CODE = str(Path(__file__).parents[2])
_STDLIB = str(Path(traceback.__file__).parent)


def one_line(error: BaseException) -> str:
    """Returns ``ValueError: bad move (workflow.py:31)``: the class, the first line of the message
    and the innermost line of the user's code, without secrets and control characters."""
    # Redacted before it is cut: a cut line could end within a secret.
    message = first_line(redact(message_of(error)))
    name = type_name(type(error))
    text = f"{name}: {message}" if message else name
    if is_out_of_descriptors(error):
        text = f"{text} ({NONE_LEFT})"
    if isinstance(error, ModuleNotFoundError) and (advice := extra_advice(error.name or "")):
        text = f"{text}: {advice}"
    if advice := await_advice(error):
        text = f"{text}: {advice}"
    location = user_line(traceback.extract_tb(error.__traceback__))
    return f"{text} ({location})" if location else text


def extra_advice(module: str) -> str:
    """Returns the command that installs a module of an extra, or an empty text."""
    extra = EXTRAS.get(module.partition(".")[0])
    return install_command(extra) if extra else ""


def await_advice(error: BaseException) -> str:
    """Returns a line about the coroutine that the failed line used as if it were the result, or an
    empty text."""
    trace = error.__traceback__
    if trace is None or type(error) not in (AttributeError, TypeError):
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    # An AttributeError has the object; of a TypeError only the variables are known.
    in_use: Iterable[Any] = trace.tb_frame.f_locals.values()
    for value in [error.obj] if isinstance(error, AttributeError) else in_use:
        if (
            type(value) is CoroutineType
            and inspect.getcoroutinestate(value) == inspect.CORO_CREATED
        ):
            return f"{value.__qualname__}() was not awaited: write await before the call"
    return ""


def did_you_mean(name: str, names: Iterable[str], otherwise: str | None = None) -> str:
    """Returns the advice for a name that there is not: ``did you mean 'seed'?``; where no name is
    close, `otherwise`, or all names."""
    existing = list(names)
    if close := get_close_matches(name, existing, 1):
        return f"did you mean {close[0]!r}?"
    return otherwise or f"there are {', '.join(existing) or 'none'}"


def windows_advice(path: str) -> str:
    """Returns what to append to "no such file" for a path of Windows', or an empty text."""
    drive = re.match(r"([A-Za-z]):[\\/]", path)
    if os.sep == "\\" or not (drive or "\\" in path):
        return ""
    example = f"; in WSL the drive is /mnt/{drive[1].lower()}" if drive else ""
    return f"; this is a path of Windows: here folders are separated by /{example}"


def message_of(error: BaseException) -> str:
    """Returns the exception's message, cut if it is very long; "" if its `__str__` fails."""
    if type(error).__str__ in (BaseException.__str__, KeyError.__str__):
        # `str(error)` would call the `__str__` of the argument, which may be anything.
        argument = error.args[0] if len(error.args) == 1 else error.args or ""
        text = plain_text(argument, MAX_MESSAGE_READ)
        return repr(text) if isinstance(error, KeyError) and error.args else text
    message = plain_text(error, MAX_MESSAGE_READ)
    return "" if message == f"<{type_name(type(error))} object>" else message


def first_line(text: str) -> str:
    """Returns the text's first line, cut, with control characters escaped."""
    line = next(iter(text.lstrip()[:MAX_MESSAGE_LENGTH].splitlines()), "")
    return printable(line.rstrip())


def user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Returns ``workflow.py:31``, the innermost frame that is the user's code, or ""."""
    for frame in reversed(frames):
        file = frame.filename
        is_library = "site-packages" in file or "/lib/python" in file
        if not (is_library or file.startswith((_OWN_CODE, "<"))):
            return f"{Path(file).name}:{frame.lineno}"
    return ""


def user_traceback(error: BaseException) -> str | None:
    """Returns the text of the traceback; None if no code of the user's was running."""
    frames = error.__traceback__
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        in_stdlib = file.startswith(_STDLIB) and "site-packages" not in file
        if not (in_stdlib or file.startswith((_OWN_CODE, "<"))):
            break
        frames = frames.tb_next
    if frames is None:
        return None
    text = printable("".join(traceback.format_exception(type(error), error, frames)))
    advice = await_advice(error)
    return f"{text}{advice}\n" if advice else text
