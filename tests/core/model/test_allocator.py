"""What a process keeps beside the tensors of a large model."""

import json
import os
import subprocess
import sys

import pytest

from ajet.core.model.allocator import CACHES

USED = """
import ctypes
import json
import torch
from ajet.core.model.allocator import prepare_memory
from ajet.core.model.wide_layer import product

SIZES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()

class Sizes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in SIZES]

sizes = ctypes.CDLL(None).mallinfo2
sizes.restype = Sizes
prepare_memory()
weight, used = torch.randn(64, 64), []
for number in range(800):
    product(torch.randn(100 + number, 64), weight)
    if number % 400 == 399:
        used.append(sizes().uordblks)
print(json.dumps(used))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks glibc")
def test_compiled_products_of_many_shapes_are_not_kept():
    environment = {name: value for name, value in os.environ.items() if name not in CACHES}
    ran = subprocess.run(
        [sys.executable, "-c", USED], env=environment, capture_output=True, text=True
    )
    if "undefined symbol: mallinfo2" in ran.stderr:
        pytest.skip("this C library does not tell")
    first, last = json.loads(ran.stdout)
    assert (last - first) / 400 < 50_000  # bytes a shape; 370,000 where they are kept
