"""Finds files that Git LFS has not downloaded: `git clone` without it leaves a pointer of three
lines in the place of each large file."""

from contextlib import suppress
from pathlib import Path

SUFFIXES = (".safetensors", ".bin", ".json", ".model")
_FIRST_BYTES = b"version https://git-lfs.github.com/spec/"


def pointer_problem(folder: Path) -> str | None:
    """Returns one line about the first pointer in a model's folder; None if there is none."""
    for file in sorted(folder.iterdir()):
        # Loading reports a file that cannot be read.
        with suppress(OSError):
            if file.suffix in SUFFIXES and file.is_file():
                with file.open("rb") as content:
                    if content.read(len(_FIRST_BYTES)) == _FIRST_BYTES:
                        return f"{file.name} is a pointer of Git LFS; run `git lfs pull` there"
    return None
