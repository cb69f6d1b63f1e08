"""Values that an episode may hand over, by name.

They break what is usually taken for granted of a value: that it has a text, a size, an order, an
end, a depth, an encoding.
"""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


class Raising:
    """Raises in every method that Python calls by itself."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("\x1b[31mno\x00")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __bool__ = __float__ = __int__ = _raise
    __index__ = __getitem__ = __contains__ = __lt__ = __format__ = __reduce__ = __call__ = _raise
    __hash__ = _raise  # type: ignore[assignment]

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("no copy")


class Leaving:
    """Tries to end the process."""

    def _leave(self, *_: Any) -> Any:
        raise SystemExit(3)

    __repr__ = __str__ = __len__ = __iter__ = __bool__ = __float__ = __int__ = _leave


class LyingList(list):
    """Says that it has a billion entries, and never ends."""

    def __len__(self) -> int:
        return 10**9

    def __iter__(self) -> Any:
        while True:
            yield "again"


class RaisingDict(dict):
    """Raises where it is read."""

    def items(self) -> Any:
        raise RuntimeError("no items")

    __iter__ = keys = values = get = items


class LyingText(str):
    """Is another text whenever it is asked."""

    def __str__(self) -> str:
        return f"text {random.random()}"

    __repr__ = __str__

    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("no bytes")


class LyingNumber(float):
    """Converts to what is not a number."""

    def __float__(self) -> float:
        return float("nan")

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class NamelessKind(type):
    @property
    def __name__(cls) -> str:
        raise RuntimeError("no name")


class Nameless(metaclass=NamelessKind):
    pass


def nested(depth: int, kind: str = "list") -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value] if kind == "list" else {"in": value}
    return value


def cyclic_list() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def doubled(times: int) -> Any:
    """Has 2 to the power of `times` leaves, and takes no room."""
    value: Any = ["leaf"]
    for _ in range(times):
        value = [value, value]
    return value


def objects() -> np.ndarray:
    value = np.empty(1, dtype=object)
    value[0] = Raising()
    return value


MAKERS: dict[str, Callable[[], Any]] = {
    "huge integer": lambda: 10**6000,
    "huge negative integer": lambda: -(10**6000),
    "large float": lambda: 1e308,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "raising": lambda: Raising(),
    "leaving": lambda: Leaving(),
    "lying list": lambda: LyingList([1]),
    "raising dict": lambda: RaisingDict(a=1),
    "lying text": lambda: LyingText("a"),
    "lying number": lambda: LyingNumber(1.0),
    "nameless": lambda: Nameless(),
    "list 500 deep": lambda: nested(500),
    "list 5,000 deep": lambda: nested(5_000),
    "dict 20,000 deep": lambda: nested(20_000, "dict"),
    "cyclic list": lambda: cyclic_list(),
    "cyclic dict": lambda: cyclic_dict(),
    "a tree of a million million million leaves": lambda: doubled(60),
    "lone surrogate": lambda: "a\ud800b",
    "nul": lambda: "a\x00b",
    "escape": lambda: "\x1b]0;owned\x07\x1b[2J\u202e",
    "long text": lambda: "x" * 200_000,
    "numpy number": lambda: np.float32(0.5),
    "numpy array": lambda: np.arange(6).reshape(2, 3),
    "numpy longdouble": lambda: np.longdouble(1.5),
    "numpy objects": objects,
    "numpy array of no number": lambda: np.array(None),
    "numpy date that is missing": lambda: np.datetime64("NaT"),
    "numpy duration": lambda: np.timedelta64(5, "ns"),
    "numpy duration that is missing": lambda: np.timedelta64("NaT"),
    "numpy number that is masked": lambda: np.ma.masked,
    "torch number": lambda: torch.tensor(0.5),
    "torch array": lambda: torch.zeros(2000),
    "bytes": lambda: b"\xff\x00" * 2000,
    "set": lambda: {1, "a", None},
    "keys that are no texts": lambda: {
        (1, 2): 1,
        None: 2,
        10**6000: 3,
        1.5: 4,
        b"k": 5,
        Nameless(): 6,
    },
    "a huge key": lambda: {"k" * 100_000: 1},
    "generator": lambda: (number for number in range(3)),
    "bool": lambda: True,
    "none": lambda: None,
    "text": lambda: "text",
}
"""Makes each value anew."""
