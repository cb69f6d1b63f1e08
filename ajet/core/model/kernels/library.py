"""Compiles the kernels with this machine's C compiler, once, and keeps the library.

    ~/.cache/ajet/kernels-<digest>.so      the digest of sources, compiler, flags and processor

Loading a library runs its code, so one that another user could have written is not loaded, and a
folder that another user could exchange is not used.

The library has no threads of its own: it takes those of the OpenMP runtime that torch has loaded.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from loguru import logger

from ajet.core.process_guard import guarded

SOURCES = ("kernels.c", "attention.inc", "decode.inc", "layers.inc", "products.inc")
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    # Only to compile: linked with it, a library sets the mode of rounding of the thread that loads
    # it.
    "-ffast-math",
    "-fno-finite-math-only",
)
COMPILE_S = 120.0
SLOWER = "this CPU will take about a third longer than it could to sample and to train"


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns the library, compiled now if no process did before, or None where that is not
    possible, which is a warning."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        logger.warning(f"{SLOWER}: no C compiler (cc) is installed; gcc is one")
        return None
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (exchangeable := first_exchangeable(folder)) is None:
            return ctypes.CDLL(str(compiled(compiler, folder)))
        logger.warning(
            f"{exchangeable} belongs to another user or can be written by others, so the kernels "
            "are compiled anew for this process: set XDG_CACHE_HOME to a folder of yours"
        )
        with tempfile.TemporaryDirectory() as private:
            return ctypes.CDLL(str(compiled(compiler, Path(private))))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning(f"{SLOWER}: {compiler} could not compile {SOURCES[0]}: {error}")
        return None


def cache_folder() -> Path:
    """Returns the user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ajet"


def compiled(compiler: str, folder: Path) -> Path:
    """Compiles the sources unless the folder has their library for this compiler and processor,
    and returns its path. Raises `OSError` or `SubprocessError` where that fails."""
    sources = [Path(__file__).with_name(name) for name in SOURCES]
    version = subprocess.run(
        guarded([compiler, "--version"]), capture_output=True, check=True, timeout=COMPILE_S
    ).stdout
    contents = [source.read_bytes() for source in sources]
    contents += [version, repr(FLAGS).encode(), processor().encode()]
    digest = hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    library = folder / f"kernels-{digest}.so"
    if (
        os.path.lexists(library)
        and not library.is_symlink()
        and not _is_writable_by_others(library)
    ):
        return library
    with tempfile.TemporaryDirectory(dir=folder) as build_folder:
        unlinked, linked = Path(build_folder, "kernels.o"), Path(build_folder, "kernels.so")
        # Linked without -fopenmp: its functions are then those of the runtime that torch has.
        for command in (
            [compiler, *FLAGS, "-c", str(sources[0]), "-o", str(unlinked)],
            [compiler, "-shared", str(unlinked), "-o", str(linked), "-lm"],
        ):
            subprocess.run(guarded(command), capture_output=True, check=True, timeout=COMPILE_S)
        linked.chmod(0o700)
        linked.replace(library)
    return library


def first_exchangeable(folder: Path) -> Path | None:
    """Returns the first of the folder and those above it whose content another user could replace,
    None where there is none. In /tmp nobody can replace what isn't theirs (the sticky bit)."""
    for path in (folder.absolute(), *folder.absolute().parents, *folder.resolve().parents):
        if _is_writable_by_others(path):
            return path
    return None


def _is_writable_by_others(path: Path) -> bool:
    """Returns True where another user than root owns a path or may write to it. A link counts by
    its owner."""
    status = path.lstat()
    if status.st_uid not in (0, os.geteuid()):
        return True
    is_guarded = stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX
    return not is_guarded and bool(status.st_mode & 0o022)


def processor() -> str:
    """Returns what tells this processor's instructions from another's."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"
