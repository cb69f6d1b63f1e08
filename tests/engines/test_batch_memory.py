"""The memory that one batch of keys and values after another lies in."""

import sys
from pathlib import Path

import pytest
import torch

from ajet.engines.kv_cache import MAPPED_BYTES, BatchMemory, empty

LIKE = torch.empty(0)


def test_parts_follow_one_another_and_the_next_batch_takes_the_same_memory():
    memory = BatchMemory(LIKE)
    memory.begin(10)
    first, second = memory.take(4), memory.take(6)
    first.fill_(1)
    second.fill_(2)
    assert first.tolist() == [1] * 4
    assert second.tolist() == [2] * 6
    memory.begin(7)
    assert memory.take(7).tolist() == [1] * 4 + [2] * 3


def test_batch_memory_grows_on_demand():
    memory = BatchMemory(LIKE)
    memory.begin(3)
    memory.begin(5)
    assert len(memory.take(5)) == 5
    with pytest.raises(AssertionError, match="reserved"):
        memory.take(1)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_buffers_are_mapped_and_returned_to_the_system():
    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    num = 4 * MAPPED_BYTES
    before = resident_bytes()
    memory = empty(LIKE, num)
    unwritten = resident_bytes() - before
    memory.fill_(1)
    written = resident_bytes() - before
    del memory
    freed = resident_bytes() - before
    assert unwritten < num
    assert written > 3 * num  # of 4 bytes each
    assert freed < num


def test_other_dtypes_are_mapped_too():
    num = MAPPED_BYTES
    memory = empty(torch.empty(0, dtype=torch.bfloat16), num)
    assert memory.dtype == torch.bfloat16
    assert len(memory) == num
    memory[-1] = 3
    assert memory[-1].item() == 3
