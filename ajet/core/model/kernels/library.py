"""Compiles the kernels with this machine's C compiler, once, and keeps the library in
~/.cache/ajet. Loading a library runs its code, so one that another user could have written is not
loaded, and a folder that another user could replace is not used.
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

from ajet.core.process.process_guard import guarded

SOURCES = ("kernels.c", "attention.inc", "decode.inc", "layers.inc", "products.inc")
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fPIC",
    # Only to compile: a library linked with it changes how the loading thread rounds (denormals
    # become 0).
    "-ffast-math",
    "-fno-finite-math-only",
)
COMPILE_S = 120.0
SLOWER = "this CPU will take about a third longer than it could to sample and to train"


@functools.cache
def library() -> ctypes.CDLL | None:
    """Returns the library, compiled unless a process has done so before; warns and returns None
    where that fails."""
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
            "are compiled again for this process: set XDG_CACHE_HOME to a folder of yours"
        )
        with tempfile.TemporaryDirectory() as private:
            return ctypes.CDLL(str(compiled(compiler, Path(private))))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning(f"{SLOWER}: {compiler} could not compile {SOURCES[0]}: {error}")
        return None


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ajet"


def compiled(compiler: str, folder: Path) -> Path:
    """Returns the path of the library for these sources, compiler and processor, compiled unless
    the folder has it. Raises `OSError` or `SubprocessError`."""
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
        # Linked without -fopenmp, so that it uses the OpenMP runtime and threads of torch.
        for command in (
            [compiler, *FLAGS, "-c", str(sources[0]), "-o", str(unlinked)],
            [compiler, "-shared", str(unlinked), "-o", str(linked), "-lm"],
        ):
            subprocess.run(guarded(command), capture_output=True, check=True, timeout=COMPILE_S)
        linked.chmod(0o700)
        linked.replace(library)  # atomic: several processes may compile at the same time
    return library


def first_exchangeable(folder: Path) -> Path | None:
    """Returns the first of the folder and its parents whose content another user could replace. In
    /tmp, which has the sticky bit, users can replace only their own files."""
    for path in (folder.absolute(), *folder.absolute().parents, *folder.resolve().parents):
        if _is_writable_by_others(path):
            return path
    return None


def _is_writable_by_others(path: Path) -> bool:
    """Tells whether a user other than root owns a path or may write to it. Only the owner of a link
    matters."""
    status = path.lstat()
    if status.st_uid not in (0, os.geteuid()):
        return True
    is_guarded = stat.S_ISLNK(status.st_mode) or status.st_mode & stat.S_ISVTX
    return not is_guarded and bool(status.st_mode & 0o022)


def processor() -> str:
    """Identifies the instruction set for which -march=native compiles."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"
