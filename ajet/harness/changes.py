"""Describes in a bounded text how a folder has changed, as a unified diff.

Files that are not text, or too large to compare, are only named. Links are not followed.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from ajet.sandbox.files import regular_files

MAX_FILE = 100_000
MAX_FILES = 2000
CUT = "\n[cut]\n"


def changes(before: Path, after: Path, max_characters: int) -> str:
    names = sorted({*regular_files(before), *regular_files(after)})
    diffs: list[str] = []
    size = 0
    for name in names[:MAX_FILES]:
        old, new = _content(before / name), _content(after / name)
        if old != new:
            diffs.append(_difference(name, old, new))
            size += len(diffs[-1])
        if size > max_characters:
            break
    text = "".join(diffs)
    return text if len(text) <= max_characters else text[:max_characters] + CUT


def _content(path: Path) -> bytes | None:
    """Returns a file's bytes, or None if there is none. For a large file it is the size and both
    ends; the NUL after the size marks it as not text."""
    if path.is_symlink() or not path.is_file():
        return None
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= MAX_FILE:
            return file.read()
        head = file.read(MAX_FILE // 2)
        file.seek(-(MAX_FILE // 2), 2)
        return b"%d\0" % size + head + file.read()


def _difference(name: str, old: bytes | None, new: bytes | None) -> str:
    texts = _lines(old), _lines(new)
    if texts[0] is None or texts[1] is None:
        change = "added" if old is None else "removed" if new is None else "changed"
        return f"{name}: {change}, not text or too large to show\n"
    labels = (
        "/dev/null" if old is None else f"a/{name}",
        "/dev/null" if new is None else f"b/{name}",
    )
    lines = difflib.unified_diff(texts[0], texts[1], *labels)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _lines(content: bytes | None) -> list[str] | None:
    if content is None:
        return []
    if b"\0" in content:
        return None
    try:
        return content.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None
