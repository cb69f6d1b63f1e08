"""A fast checksum of a tensor's bytes that is equal on every device: words of 8 bytes are mixed
with their positions and summed modulo 2**64, in whatever order. It detects flipped bits, swapped or
repeated blocks and truncation, but not deliberate collisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

WORD_BYTES, CHUNK_WORDS = 8, 1 << 15
CHUNKS_PER_PASS = {"cpu": 1}
"""The number of chunks summed at a time: one fits into a CPU's cache, GPUs are faster with many."""
DEFAULT_CHUNKS_PER_PASS = 256
KEY_MULTIPLIER, MIX_MULTIPLIER, CHAIN_MULTIPLIER = (
    0x1E3779B97F4A7C15,
    0x3F58476D1CE4E5B9,
    0x14D049BB133111EB,
)
"""Odd, so that multiplication modulo 2**64 is invertible; below 2**63, to fit an int64."""
MODULUS = 1 << 64


def tensor_checksum(tensor: Tensor) -> str:
    """Returns a checksum of 16 hexadecimal digits. It does not cover the shape (see TensorInfo)."""
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    positions = torch.arange(1, 2 * CHUNK_WORDS, 2, device=data.device)
    keys = positions * KEY_MULTIPLIER
    size = CHUNK_WORDS * WORD_BYTES
    step = size * CHUNKS_PER_PASS.get(data.device.type, DEFAULT_CHUNKS_PER_PASS)
    whole = data.numel() - data.numel() % size  # bytes in full chunks
    total = data.numel()  # the length is part of the checksum: trailing zeros count
    for start in range(0, whole, step):
        total = _add(total, data[start : min(start + step, whole)], positions, keys)
    rest = data[whole:]
    short = -rest.numel() % WORD_BYTES
    num_words = (rest.numel() + short) // WORD_BYTES
    if num_words:
        rest = torch.nn.functional.pad(rest, (0, short))
        total = _add(total, rest, positions[:num_words], keys[:num_words])
    return f"{total:016x}"


def _add(total: int, data: Tensor, positions: Tensor, keys: Tensor) -> int:
    """Returns `total` updated with the sums of one or more chunks of equal length."""
    import torch

    # `view(int64)` needs both the address and the storage offset at a multiple of 8 bytes.
    aligned = data if data.data_ptr() % WORD_BYTES == 0 else data.clone()
    if aligned.storage_offset() % WORD_BYTES:
        aligned = aligned.clone()
    mixed = aligned.view(torch.int64).view(-1, len(positions)) + positions
    mixed *= keys
    # Without these shifts, two flipped top bits (two signs) would cancel each other.
    mixed ^= mixed >> 31
    mixed *= MIX_MULTIPLIER
    mixed ^= mixed >> 29
    for chunk in mixed.sum(1).tolist():
        total = (total * CHAIN_MULTIPLIER + chunk) % MODULUS
    return total


def combined_checksum(lines: Iterable[tuple[str, str, tuple[int, ...], str]]) -> str:
    """Returns one checksum of tensors given by (name, dtype, shape, checksum), in any order."""
    text = "\n".join(
        f"{name} {dtype} {shape} {checksum}" for name, dtype, shape, checksum in sorted(lines)
    )
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
