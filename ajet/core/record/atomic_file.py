"""Writes a small file so that it exists completely or not at all, whenever the process is killed.

Not covered: folders and big files with checksums, which checkpoints need.
"""

import os
from pathlib import Path

from ajet.core.errors import CheckpointError


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a temporary file, flushes it to the disk, and renames it over `path`. Raises
    `CheckpointError` when that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Without fsync the rename could reach the disk before the content.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
