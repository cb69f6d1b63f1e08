"""Kernels in C for what stands between a decoder's products on a CPU, compiled on this machine.

    rms_norm(x [N, D], weight, eps) -> [N, D]
    rotate(qk [N, heads, d], cos, signed_sin)             in place; decoder.rotate says what it is
    place(q, k, v, own_k, own_v, column) -> scaled q      writes a column of a batch's own parts
    attend(scaled, own_k, own_v, shared, ...) -> out      attention of a decode step, own parts

A decode step of 32 rows is many small operations. Each of torch's costs 5 to 40 microseconds, and
attention over rows of their own takes four of them, which go through memory each time.

`kernels()` compiles kernels.c with the machine's C compiler when a model first asks for it, which
takes a second, and keeps the library in the user's cache folder. It returns None where there is no
compiler, and callers compute with torch: the same numbers but for rounding. The library has no
threads of its own: it takes those of the OpenMP runtime that torch has loaded.

Not covered: other systems than Linux; dtypes other than float32 and bfloat16; gradients.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from loguru import logger
from torch import Tensor

SOURCES = ("kernels.c", "kernels.inc")
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
COMPILE_S = 60.0
SLOWER = "sampling on this CPU takes about a third longer than it could"
NAMES = {torch.float32: "float", torch.bfloat16: "bfloat16"}

_P, _I, _F = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
ARGUMENTS = {
    "rms_norm": (_P, _P, _F, _P, _I, _I, _I),
    "rotate": (_P, _I, _P, _P, _I, _I, _I, _I),
    "place": (*[_P] * 3, *[_I] * 3, *[_P] * 3, *[_I] * 6),
    "attend": (*[_P] * 8, *[_I] * 8),
}


class Kernels:
    """Calls the compiled functions for tensors of float32 and bfloat16 on the CPU."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {
            (name, dtype): self._function(library, f"{name}_{suffix}", types)
            for name, types in ARGUMENTS.items()
            for dtype, suffix in NAMES.items()
        }

    @staticmethod
    def _function(library: ctypes.CDLL, name: str, types: tuple[type, ...]) -> ctypes._FuncPointer:
        function = getattr(library, name)
        function.argtypes, function.restype = types, None
        return function

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Returns ``x * rsqrt(mean(x^2) + eps) * weight`` for ``x [N, D]``."""
        x = x.contiguous()
        out = torch.empty_like(x)
        self._functions["rms_norm", x.dtype](
            x.data_ptr(), weight.data_ptr(), eps, out.data_ptr(), *x.shape, torch.get_num_threads()
        )
        return out

    def rotate(self, qk: Tensor, cos: Tensor, signed_sin: Tensor) -> None:
        """Applies the rotary position to ``qk [N, heads, d]``, a view whose heads lie together, in
        place. `cos` and `signed_sin` are ``[N, 1, d]``."""
        rows, heads, dim = qk.shape
        self._functions["rotate", qk.dtype](
            qk.data_ptr(),
            qk.stride(0),
            cos.data_ptr(),
            signed_sin.data_ptr(),
            rows,
            heads,
            dim,
            torch.get_num_threads(),
        )

    def place(
        self, q: Tensor, k: Tensor, v: Tensor, own_k: Tensor, own_v: Tensor, column: int
    ) -> Tensor:
        """Writes keys and values ``[rows, kv_heads, d]`` to a column of ``own_k`` and ``own_v
        [kv_heads, rows, columns, d]``, and returns ``q [rows, heads, d] * d ** -0.5`` as
        ``[kv_heads, rows, group, d]``. Of `q`, `k` and `v` the heads of a row lie together."""
        kv_heads, rows, columns, dim = own_k.shape
        group = q.shape[1] // kv_heads
        scaled = q.new_empty(kv_heads, rows, group, dim)
        self._functions["place", q.dtype](
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            q.stride(0),
            k.stride(0),
            v.stride(0),
            own_k.data_ptr(),
            own_v.data_ptr(),
            scaled.data_ptr(),
            rows,
            kv_heads,
            group,
            dim,
            columns,
            column,
        )
        return scaled

    def attend(
        self,
        scaled: Tensor,
        own: tuple[Tensor, Tensor],
        shared: Tensor,
        start_R: Tensor,
        num_shared_R: Tensor,
        column: int,
    ) -> Tensor:
        """Returns what the own parts add to the attention, ``[kv_heads, rows, group, d]``.

        Row r attends the first ``num_shared_R[r]`` of its scores in ``shared [kv_heads, rows,
        group, S]``, and its own columns from ``start_R[r]`` to `column`, in one softmax. `shared`
        becomes the probabilities of the shared tokens, which the caller multiplies with their
        values and adds.
        """
        (kv_heads, rows, group, dim), columns = scaled.shape, own[0].shape[2]
        width = shared.shape[3]
        out = torch.empty_like(scaled)
        scratch = torch.empty(kv_heads * rows * (width + group * columns))
        self._functions["attend", scaled.dtype](
            scaled.data_ptr(),
            own[0].data_ptr(),
            own[1].data_ptr(),
            shared.data_ptr(),
            start_R.data_ptr(),
            num_shared_R.data_ptr(),
            out.data_ptr(),
            scratch.data_ptr(),
            kv_heads,
            rows,
            group,
            dim,
            columns,
            column,
            width,
            torch.get_num_threads(),
        )
        return out


def kernels_for(tensor: Tensor) -> Kernels | None:
    """Returns the kernels if they compute for such tensors and can be compiled here."""
    if tensor.device.type != "cpu" or tensor.dtype not in NAMES:
        return None
    return kernels()


@functools.cache
def kernels() -> Kernels | None:
    """Returns the kernels, compiled now if no process did before, or None where that is not
    possible, which is a warning."""
    compiler = shutil.which("cc")
    if sys.platform != "linux" or compiler is None:
        logger.warning(f"{SLOWER}: no C compiler (cc) is installed; gcc is one")
        return None
    try:
        return Kernels(ctypes.CDLL(str(library_of(compiler, cache_folder()))))
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning(f"{SLOWER}: {compiler} does not compile {SOURCES[0]} ({error})")
        return None


def cache_folder() -> Path:
    """Returns the user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ajet"


def library_of(compiler: str, folder: Path) -> Path:
    """Compiles the sources unless the folder has their library for this compiler and processor,
    and returns its path. Raises `OSError` or `SubprocessError` where that fails."""
    sources = [Path(__file__).with_name(name) for name in SOURCES]
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
    parts = [each.read_bytes() for each in sources]
    parts += [version, repr(FLAGS).encode(), processor().encode()]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    library = folder / f"kernels-{digest}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        unlinked, linked = Path(made, "kernels.o"), Path(made, "kernels.so")
        # Linked without -fopenmp: its functions are then those of the runtime that torch has.
        for command in (
            [compiler, *FLAGS, "-c", str(sources[0]), "-o", str(unlinked)],
            [compiler, "-shared", str(unlinked), "-o", str(linked), "-lm"],
        ):
            subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_S)
        linked.replace(library)
    return library


def processor() -> str:
    """Returns what tells this processor's instructions from another's."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {flags}"
