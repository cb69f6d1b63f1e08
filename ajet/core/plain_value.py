"""Any object as plain data of a bounded size: dicts, lists, texts, numbers, bools, None.

    plain_value({"a": (1, np.float32(2)), 3: b"x"})   {"a": [1, 2.0], "3": "b'x'"}
    plain_value(10**6000)                             "<integer of 19932 bits>"
    plain_value(an object whose __repr__ raises)      "<Broken object>"

The result is a copy that JSON and UTF-8 can encode. What is cut is named where it was.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_INTEGER_BITS = 4096
"""Larger integers are named by their size: from 4,300 digits on Python refuses to write them."""
MAX_BYTES_SHOWN = 1000
SHORT_KEY = 200
"""Shorter keys are kept even where the characters are used up: cut, they would collide."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators and marks that reorder text; tab and line feed may stay."""


@dataclass(frozen=True, slots=True)
class PlainLimits:
    """The largest plain value that is kept: nesting, values, and characters of all texts."""

    depth: int = 100
    values: int = 100_000
    characters: int = 16_000_000


DEFAULT_LIMITS = PlainLimits()
_TEXT_LIMITS = PlainLimits(depth=10, values=1000, characters=1_000_000)


def plain_value(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> Any:
    """The value as plain data, cut to the limits. It never raises, whatever the value does."""
    return _Reduction(limits).plain(value, 0)


def uncut_plain_value(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> Any:
    """The value as plain data. Raises ValueError if it would be cut."""
    reduction = _Reduction(limits)
    plain = reduction.plain(value, 0)
    if reduction.is_cut:
        raise ValueError(
            f"a message or a tool is nested more than {limits.depth} deep, or holds itself or more "
            f"than {limits.values} values"
        )
    return plain


def plain_text(value: Any, max_length: int) -> str:
    """Returns the value's text, as UTF-8 can hold it, cut to this length."""
    plain = value if type(value) is str else plain_value(value, _TEXT_LIMITS)
    text = without_surrogates(plain if isinstance(plain, str) else str(plain))
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def num_characters(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> int:
    """The characters of all texts in a value. Raises ValueError for one that holds more values than
    the limit, or itself."""
    total, num_values, stack = 0, 0, [value]
    while stack:
        item = stack.pop()
        num_values += 1
        if num_values + len(stack) > limits.values:
            raise ValueError(
                f"a call's messages hold more than {limits.values} values, or themselves"
            )
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            stack += islice(item.keys(), limits.values)
            stack += islice(item.values(), limits.values)
        elif isinstance(item, list | tuple):
            stack += islice(item, limits.values)
    return total


def without_surrogates(text: str) -> str:
    """Returns the text with lone surrogates, which UTF-8 cannot hold, replaced."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def printable(text: str) -> str:
    """Returns the text with its control characters spelled out, so that a terminal shows them and
    does not obey them."""
    return _CONTROL.sub(
        lambda match: (
            "\\" + (f"x{ord(match[0]):02x}" if match[0] < "\u0100" else f"u{ord(match[0]):04x}")
        ),
        without_surrogates(text),
    )


class _Reduction:
    """Reduces one value, and counts what it uses of the limits."""

    def __init__(self, limits: PlainLimits) -> None:
        self._max_depth = limits.depth
        self._values_left = limits.values
        self._characters_left = limits.characters
        self._containers: set[int] = set()  # ids of those around the value, to notice a cycle
        self.is_cut = False

    def plain(self, value: Any, depth: int) -> Any:
        self._values_left -= 1
        if value is None or value is True or value is False:
            return value
        try:
            return self._reduced(value, depth)
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException:  # noqa: BLE001  # the object's code; Rust panics outside Exception
            return self._text(f"<{type_name(type(value))} object>")

    def _reduced(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):  # the base class's method makes a plain str of a subclass
            return self._text(str.__str__(value))
        if isinstance(value, int):
            bits = int.bit_length(value)
            return int.__int__(value) if bits <= MAX_INTEGER_BITS else f"<integer of {bits} bits>"
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, dict | list | tuple | set | frozenset | Mapping):
            return self._container(value, depth)
        if isinstance(value, bytes | bytearray):
            cut = f"… [cut: {len(value)} bytes]" if len(value) > MAX_BYTES_SHOWN else ""
            return self._text(f"{bytes(value[:MAX_BYTES_SHOWN])!r}{cut}")
        if _is_array(value) and value.nbytes <= 8 * self._values_left:
            numbers = value.tolist()
            # numpy's longdouble has no type in Python and stays itself
            return self.plain(float(numbers) if _is_array(numbers) else numbers, depth)
        return self._text(str(value))

    def _text(self, text: str) -> str:
        if len(text) > self._characters_left:
            self.is_cut = True
            text = f"{text[: self._characters_left]}… [cut: {len(text)} characters]"
            self._characters_left = 0
        else:
            self._characters_left -= len(text)
        return without_surrogates(text)

    def _container(self, value: Any, depth: int) -> Any:
        in_itself = id(value) in self._containers
        if in_itself or depth >= self._max_depth:
            self.is_cut = True
            place = "within itself" if in_itself else f"below {self._max_depth} others"
            return f"<{type_name(type(value))} {place}>"
        self._containers.add(id(value))
        try:
            if isinstance(value, Mapping):
                return self._mapping(value, depth + 1)
            plain = self._sequence(value, depth + 1)
            # the order of a set differs from process to process
            return sorted(plain, key=repr) if isinstance(value, set | frozenset) else plain
        finally:
            self._containers.discard(id(value))

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, item in self._taken(value.items()):
            if self._values_left <= 0:
                break
            name = self._key(key, depth)  # before its value, which may use up the limit
            plain[name] = self.plain(item, depth)
        if self._values_left <= 0 and (num_more := len(value) - len(plain)) > 0:
            self.is_cut = True
            plain["…"] = f"<{num_more} more>"
        return plain

    def _sequence(self, value: Any, depth: int) -> list[Any]:
        plain: list[Any] = []
        for item in self._taken(value):
            if self._values_left <= 0:
                break
            plain.append(self.plain(item, depth))
        if (num_more := len(value) - len(plain)) > 0:
            self.is_cut = True
            plain.append(f"<{num_more} more>")
        return plain

    def _taken(self, items: Iterable[Any]) -> list[Any]:
        """As many items as the limit allows, copied at once: another thread of the episode may
        change the container meanwhile."""
        return list(islice(items, max(self._values_left, 0)))

    def _key(self, key: Any, depth: int) -> str:
        """The key as JSON would write it."""
        if isinstance(key, str) and len(key) <= SHORT_KEY:
            return without_surrogates(str.__str__(key))
        plain = self.plain(key, depth)
        if plain is None or isinstance(plain, bool):
            return {None: "null", True: "true", False: "false"}[plain]
        return plain if isinstance(plain, str) else repr(plain)


def _is_array(value: Any) -> bool:
    """Whether this is a number or array of numpy or torch, if the process has imported them."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    types = [getattr(numpy, "ndarray", None), getattr(numpy, "generic", None)]
    types.append(getattr(torch, "Tensor", None))
    return any(cls is not None and isinstance(value, cls) for cls in types)


def type_name(cls: type) -> str:
    """The name that `type` stores; a metaclass may define another attribute."""
    return type.__dict__["__name__"].__get__(cls)[:100]
