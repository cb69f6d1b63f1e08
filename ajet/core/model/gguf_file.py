"""Reads a GGUF file once while transformers makes a tokenizer and a model of it. It makes a
GGUFReader for the tokenizer, the config and the weights, each of which parses the whole vocabulary,
and a map of all tensor names for each module: 397 maps for 30 layers.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

_ONE_AT_A_TIME = threading.Lock()
"""Held while functions of the package are replaced: all threads see the replacements."""


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Caches GGUF readers and name maps inside the block."""
    gguf: Any = import_module("gguf")
    with _ONE_AT_A_TIME:
        reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
        gguf.GGUFReader, gguf.get_tensor_name_map = cache(_plain(reader)), cache(name_map)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map


def _plain(reader: Any) -> Any:
    """Returns a class of readers whose `data` is a plain array over the mapped file. A reader takes
    a slice for each token and merge, and slices of numpy's memmap are three times as slow."""

    class PlainReader(reader):
        @property
        def data(self) -> np.ndarray:
            return self._data

        @data.setter
        def data(self, mapped: np.ndarray) -> None:
            self._data = np.asarray(mapped)

    return PlainReader
