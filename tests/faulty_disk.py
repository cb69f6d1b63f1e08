"""A disk that is slow or fails, for chosen calls on chosen files of one process and its children.

    env = environment() | faulty_disk({"sync:checkpoints": "300ms", "write:.sqlite": errno.EIO})

A key is CALLS:PART. CALLS is read, write, sync (fsync), rename, remove, open or lock (flock, and
those of fcntl); PART is a part of the file's path. The calls then fail with the error number, or
take that long. They are calls of the C library, which a preloaded library stands in for
(faulty_disk.c), so that nothing in ajet is replaced.
"""

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("faulty_disk.c")
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


def faulty_disk(rules: Mapping[str, int | str], while_exists: Path | None = None) -> dict[str, str]:
    """The environment variables of a process with that disk, always or while a file exists."""
    told = {"FAULTY_DISK": ",".join(f"{where}:{fault}" for where, fault in rules.items())}
    if while_exists is not None:
        told["FAULTY_DISK_WHILE"] = str(while_exists)
    return told | {"LD_PRELOAD": str(_library())}


@functools.cache
def _library() -> Path:
    library = Path(tempfile.mkdtemp(prefix="faulty_disk_")) / "faulty_disk.so"
    options = ["-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *options, "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library
