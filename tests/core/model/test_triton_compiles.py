"""Triton's compiler takes every kernel for the GPUs that it will run on; no GPU is needed."""

import os

import pytest

triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("kernels are interpreted, not compiled", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from ajet.core.model.kernels import triton_decode  # noqa: E402

SHARED_MEMORY = {80: 163 << 10, 86: 99 << 10, 90: 227 << 10}
"""The bytes that a program of a GPU's may have, by compute capability."""
CAPABILITIES = pytest.mark.parametrize("capability", SHARED_MEMORY)


def compiled(kernel, types, constants, capability):
    """Compiles a kernel whose pointers are multiples of 16 bytes, and returns it."""
    names = kernel.arg_names
    signature = dict(zip(names, types.split() + ["constexpr"] * len(constants), strict=True))
    constexprs = dict(zip(names[len(types.split()) :], constants, strict=True))
    attrs = {
        (number,): [["tt.divisibility", 16]]
        for number, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attrs)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert found.metadata.shared <= SHARED_MEMORY[capability]
    return found


@CAPABILITIES
@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("dim", [32, 64, 128])
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_attention(dtype, dim, is_whole, capability):
    t, part = f"*{dtype} ", f"*{dtype} " if is_whole else "*fp32 "
    types = 7 * t + "*i32 *i64 " + t + 2 * part + 7 * "i32 " + "fp32"
    block = triton_decode.TILE_BYTES // (dim * (4 if dtype == "fp32" else 2))
    constants = (7, 16, dim, block, triton_decode.STAGES, is_whole)
    found = compiled(triton_decode._attend, types, constants, capability)
    if dtype != "fp32":
        assert "mma.sync" in found.asm["ptx"]
        assert "cp.async" in found.asm["ptx"]


@CAPABILITIES
def test_joining_the_parts_of_attention(capability):
    types = "*fp32 *fp32 *bf16 i32"
    compiled(triton_decode._join_parts, types, (64, triton_decode.MOST_PARTS), capability)


@CAPABILITIES
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_drawing(dtype, capability):
    logits = f"*{dtype} "
    compiled(
        triton_decode._sum_blocks, logits + "*fp32 *fp32 *fp32 i32 i32 i32", (16, 256), capability
    )
    types = logits + "*fp32 *fp64 *i1 *fp32 *fp32 *fp64 i32 i32 i32 i32"
    compiled(triton_decode._draw, types, (1024, 256), capability)
