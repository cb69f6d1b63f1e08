"""Writes a small file so that it exists completely or not at all, whenever the process is killed.

    write_text_atomically(path, text)     a file of the run folder
    write_output(path, content)           a file that a command line names, such as that of --out

An existing device or pipe, such as /dev/null, is written to and not replaced.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ajet.core.errors import CheckpointError
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import first_line


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a temporary file, flushes it to the disk, and renames it over `path`. Raises
    `CheckpointError` when that fails."""
    with writing(path):
        _write(path, text)


def write_output(path: Path, content: str | bytes) -> None:
    """Writes a file that a command line names, in the same way."""
    with writing_output(path):
        _write(path, content)


def is_special_file(path: Path) -> bool:
    """Tells whether this is a device or a pipe."""
    return path.exists() and not path.is_file()


def _write(path: Path, content: str | bytes) -> None:
    content = content.encode() if isinstance(content, str) else content
    if is_special_file(path):
        path.write_bytes(content)
        return
    path = Path(os.path.realpath(path))  # a link stays one, such as /dev/stdout
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            # Without fsync the rename could reach the disk before the content.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):  # the disk that fails may not remove it either
            temporary.unlink()
        raise


@contextmanager
def writing(target: Path | str) -> Iterator[None]:
    """Turns an error of the disk within the block into a `CheckpointError` that names it."""
    try:
        yield
    except IsADirectoryError as error:
        path = error.filename2 or error.filename or target
        raise CheckpointError(
            f"{path} is a folder, where a file is written; move it away, then resume",
            code=Code.RECORD_UNWRITABLE,
        ) from error
    except OSError as error:
        raise CheckpointError(
            f"{target} cannot be written: {error.strerror or first_line(str(error))}; make room, "
            "or repair the disk, then resume",
            code=Code.RECORD_UNWRITABLE,
        ) from error


@contextmanager
def writing_output(output: Path) -> Iterator[None]:
    """Turns an error of the disk within the block into a `CheckpointError` that names the output of
    a command."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"{output} was not written: {error.strerror or first_line(str(error))}; make room, or "
            "choose another place",
            code=Code.OUTPUT_NOT_WRITTEN,
        ) from error
