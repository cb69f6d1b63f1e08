"""A small file that is there whole or not at all, whatever kills the process.

Not covered: folders and big files with checksums, which checkpoints need.
"""

import os
from pathlib import Path

from ajet.core.errors import CheckpointError


def write_text_atomically(path: Path, text: str) -> None:
    """Write aside, flush to the disk, rename over `path`; `CheckpointError` when it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
