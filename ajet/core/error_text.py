"""Formats an exception for a person: one line for the record, or the traceback from their own line.

    one_line(error)        "ValueError: bad move (workflow.py:31)"
    user_traceback(error)  Traceback (most recent call last):
                             File "workflow.py", line 31, in execute   <- first frame of the user's
                               answer = int(reply["content"])
                           ValueError: invalid literal for int() …

A traceback leaves out the frames by which this package reached the user's code. Everything that the
user's code called, this package included, stays.
"""

import traceback
from collections.abc import Sequence
from pathlib import Path

from ajet.core.descriptors import NONE_LEFT, is_out_of_descriptors
from ajet.core.plain_value import plain_text, printable, type_name
from ajet.core.redaction import redact

MAX_MESSAGE_LENGTH = 500
"""The number of characters of a message that are recorded: some hold a whole page."""
MAX_MESSAGE_READ = 100_000
EXTRAS = {
    "agentscope": "agentscope",
    "aiohttp": "train",
    "datasets": "datasets",
    "docstring_parser": "train",
    "docx": "documents",
    "fastapi": "train",
    "gepa": "prompts",
    "gguf": "gguf",
    "gymnasium": "train",
    "huggingface_hub": "train",
    "jsonschema": "train",
    "langchain": "langgraph",
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
    "math_verify": "train",
    "mcp": "mcp",
    "mlflow": "mlflow",
    "openai": "train",
    "opentelemetry": "otlp",
    "peft": "lora",
    "PIL": "train",
    "prometheus_client": "prometheus",
    "psutil": "ray",
    "pyarrow": "datasets",
    "pypdf": "documents",
    "ray": "ray",
    "reasoning_gym": "reasoning-gym",
    "safetensors": "train",
    "sqlalchemy": "ray",
    "starlette": "train",
    "scienceworld": "scienceworld",
    "swanlab": "swanlab",
    "tensorboard": "train",
    "textarena": "textarena",
    "textworld": "textworld",
    "tokenizers": "train",
    "torch": "train",
    "transformers": "train",
    "uvicorn": "train",
    "wandb": "wandb",
    "websockets": "train",
}
"""Maps a module to the extra of ajet that installs it (pyproject.toml)."""
_OWN_CODE = str(Path(__file__).parents[1])
_STDLIB = str(Path(traceback.__file__).parent)


def one_line(error: BaseException) -> str:
    """Returns ``ValueError: bad move (workflow.py:31)``, without secrets: the class, the message's
    first line and the last line of the user's own code that the exception passed through, if any.
    Control characters are spelled out."""
    # Secrets are found in the whole message: a line that is cut may have half of one.
    message = first_line(redact(message_of(error)))
    name = type_name(type(error))
    text = f"{name}: {message}" if message else name
    if is_out_of_descriptors(error):
        text = f"{text} ({NONE_LEFT})"
    if isinstance(error, ModuleNotFoundError) and (advice := extra_advice(error.name or "")):
        text = f"{text}: {advice}"
    location = user_line(traceback.extract_tb(error.__traceback__))
    return f"{text} ({location})" if location else text


def extra_advice(module: str) -> str:
    """Returns the command that installs a module of an extra, or an empty text."""
    extra = EXTRAS.get(module.partition(".")[0])
    return f"pip install 'ajet[{extra}]'" if extra else ""


def message_of(error: BaseException) -> str:
    """Returns the exception's message, cut where it is very long; an empty text where the user's
    `__str__` itself fails."""
    if type(error).__str__ in (BaseException.__str__, KeyError.__str__):
        # Their text is that of what they were raised with, which may be anything.
        argument = error.args[0] if len(error.args) == 1 else error.args or ""
        text = plain_text(argument, MAX_MESSAGE_READ)
        return repr(text) if isinstance(error, KeyError) and error.args else text
    message = plain_text(error, MAX_MESSAGE_READ)
    return "" if message == f"<{type_name(type(error))} object>" else message


def first_line(text: str) -> str:
    """Returns the text's first line for a person: cut, with control characters spelled out."""
    line = next(iter(text.lstrip()[:MAX_MESSAGE_LENGTH].splitlines()), "")
    return printable(line.rstrip())


def user_line(frames: Sequence[traceback.FrameSummary]) -> str:
    """Returns ``workflow.py:31``, the innermost of these lines that is the user's own; "" if there
    is none."""
    user_frames = [f for f in frames if not _is_library(f.filename)]
    return f"{Path(user_frames[-1].filename).name}:{user_frames[-1].lineno}" if user_frames else ""


def _is_library(filename: str) -> bool:
    return (
        "site-packages" in filename
        or filename.startswith((_OWN_CODE, "<"))
        or "/lib/python" in filename
    )


def user_traceback(error: BaseException) -> str | None:
    """Returns the text of the traceback; None where no code of the user's was running."""
    frames = error.__traceback__
    while frames is not None and _is_own_or_stdlib(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if frames is None:
        return None
    return printable("".join(traceback.format_exception(type(error), error, frames)))


def _is_own_or_stdlib(filename: str) -> bool:
    in_stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
    return filename.startswith((_OWN_CODE, "<")) or in_stdlib
