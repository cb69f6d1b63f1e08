"""Freed memory is kept for the next tensor, until it is given back. In a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import re, resource
import torch
from ajet.core.model.allocator import keep_freed_memory, release_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def resident_mib():
    return int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

def use_100_mib():
    before = faults()
    torch.empty(25 << 20).fill_(1.0)
    return faults() - before

keep_freed_memory()
first, second, kept = use_100_mib(), use_100_mib(), resident_mib()
release_freed_memory()
print(first, second, kept - resident_mib())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator is glibc's")
def test_freed_memory_is_kept_and_can_be_given_back():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True
    )
    first, second, given_back = map(float, done.stdout.split())
    assert first > 5 * second  # 25,600 pages of 4 KiB, and none that the system did not take
    assert given_back > 50
