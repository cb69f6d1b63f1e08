"""Reads the header of a GGUF file: the model's numbers, and which tensors it has. Needs no package.

    "GGUF" | version | number of tensors | number of values | key, type, value … | name, shape …

The format is that of ggml's documentation (docs/gguf.md), versions 2 and 3, little-endian. Lists
are read as their lengths alone: that of the tokens is the size of the vocabulary. Not covered:
weights and their formats.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ajet.core.error_codes import Code
from ajet.core.errors import ModelError

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Maps a type of GGUF to the character by which `struct` knows it."""
STRING, LIST = 8, 9
MAX_NAME = 1 << 16
MAX_STRING = 1 << 26


@dataclass(frozen=True)
class GgufHeader:
    """Holds the values of a GGUF file, and the names of its tensors with their shapes."""

    values: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, file: Path) -> "GgufHeader":
        """Reads the file; ModelError where it is not one of GGUF."""
        try:
            with file.open("rb") as stream:
                return cls._read(stream)
        except (OSError, ValueError, struct.error) as error:
            raise ModelError(
                f"model '{file}': its GGUF header cannot be read: {error}",
                code=Code.MODEL_NOT_LOADED,
            ) from error

    @classmethod
    def _read(cls, stream: BinaryIO) -> "GgufHeader":
        magic, version, num_tensors, num_values = _unpack(stream, "4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"it begins with {magic!r} and version {version}")
        values, tensors = dict[str, Any](), dict[str, tuple[int, ...]]()
        for _ in range(num_values):
            key = _text(stream, MAX_NAME)
            [kind] = _unpack(stream, "I")
            values[key] = _value(stream, kind)
        for _ in range(num_tensors):
            name = _text(stream, MAX_NAME)
            [dimensions] = _unpack(stream, "I")
            tensors[name] = _unpack(stream, f"{min(dimensions, 8)}Q")
            _unpack(stream, "IQ")  # its format, and where it is
        return cls(values, tensors)

    def model_config(self) -> dict[str, Any]:
        """Returns what a config.json would say of the model's sizes."""
        family = self.values.get("general.architecture")
        sizes = {
            "hidden_size": f"{family}.embedding_length",
            "num_hidden_layers": f"{family}.block_count",
            "intermediate_size": f"{family}.feed_forward_length",
            "num_attention_heads": f"{family}.attention.head_count",
            "num_key_value_heads": f"{family}.attention.head_count_kv",
            "head_dim": f"{family}.attention.key_length",
            "vocab_size": "tokenizer.ggml.tokens",
        }
        return {
            "model_type": family,
            "tie_word_embeddings": "output.weight" not in self.tensors,
            **{name: self.values[key] for name, key in sizes.items() if key in self.values},
        }


def _value(stream: BinaryIO, kind: int) -> Any:
    """Returns a number, a text, or of a list its length."""
    if kind == STRING:
        return _text(stream, MAX_STRING)
    if kind != LIST:
        return _unpack(stream, _number(kind))[0]
    kind, length = _unpack(stream, "IQ")
    if kind == STRING:
        for _ in range(length):
            _text(stream, MAX_STRING)
    else:
        stream.seek(length * struct.calcsize("<" + _number(kind)), 1)
    return length


def _number(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"it has a value of the unknown type {kind}")
    return NUMBERS[kind]


def _text(stream: BinaryIO, longest: int) -> str:
    [length] = _unpack(stream, "Q")
    if length > longest:
        raise ValueError(f"it has a text of {length:,} bytes")
    return _unpack(stream, f"{length}s")[0].decode(errors="replace")


def _unpack(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack("<" + form, stream.read(struct.calcsize("<" + form)))
