"""Has a GGUF file read once while transformers makes a tokenizer and a model of it.

    transformers ── gguf.GGUFReader(file)         for the tokenizer, the config and the weights
                 ── gguf.get_tensor_name_map(…)   for the model and for each module in it

Each of these readers would parse the whole vocabulary again, and each of these maps would have the
names of all layers again: 397 maps for a model of 30 layers. Here the package `gguf` answers from
memory the second time. What transformers makes of the answers is its own, so a model has the same
bits.

Not covered: families that transformers reads without this package.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

_ONE_AT_A_TIME = threading.Lock()
"""Is held while the names of the package are replaced, because all threads see them."""


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Keeps what was read of GGUF files until the end of the block."""
    gguf: Any = import_module("gguf")
    with _ONE_AT_A_TIME:
        reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
        gguf.GGUFReader, gguf.get_tensor_name_map = cache(_plain(reader)), cache(name_map)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map


def _plain(reader: Any) -> Any:
    """Returns the class of readers whose `data` is a plain array over the mapped file. A reader
    takes slices for each token and merge; with numpy's memmap all takes three times as long."""

    class PlainReader(reader):
        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._data = np.asarray(mapped)

    return PlainReader
