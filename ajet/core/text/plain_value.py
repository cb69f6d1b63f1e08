"""Converts any object to plain data of a bounded size: dicts, lists, texts, numbers, bools, None.

    plain_value({"a": (1, np.float32(2)), 3: b"x"})   {"a": [1, 2.0], "3": "b'x'"}
    plain_value(10**6000)                             "<integer of 19932 bits>"
    plain_value(an object whose __repr__ raises)      "<Broken object>"
    printable("\\x1b[2Jgone")                          "\\\\x1b[2Jgone"

An episode may return anything, but the result here can always be encoded as JSON and UTF-8. It is a
copy, with a note wherever something was cut. Containers are read by the methods of their builtin
base class, so that an override that lies or raises has no effect.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

MAX_INTEGER_BITS = 4096
"""Larger integers become a note of their size: Python refuses to print more than 4,300 digits."""
MAX_BYTES_SHOWN = 1000
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Control characters, line separators and marks that reorder text; not tab and line feed."""


@dataclass(frozen=True, slots=True)
class PlainLimits:
    """The largest plain value: depth, number of values, characters in all texts together."""

    depth: int = 100
    values: int = 100_000
    characters: int = 16_000_000


DEFAULT_LIMITS = PlainLimits()
_TEXT_LIMITS = PlainLimits(depth=10, values=1000, characters=1_000_000)


def plain_value(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> Any:
    """Returns the value as plain data; never raises."""
    return _Reduction(limits).plain(value, 0)


def uncut_plain_value(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> Any:
    """Returns the value as plain data; raises ValueError if it would be cut."""
    reduction = _Reduction(limits)
    plain = reduction.plain(value, 0)
    if reduction.num_cuts:
        raise ValueError(
            f"a message or a tool is nested more than {limits.depth} deep, contains itself or more "
            f"than {limits.values} values"
        )
    return plain


def plain_text(value: Any, max_length: int) -> str:
    """Returns the value as a text of at most `max_length` characters that UTF-8 can encode."""
    plain = value if type(value) is str else plain_value(value, _TEXT_LIMITS)
    text = without_surrogates(plain if isinstance(plain, str) else str(plain))
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def num_characters(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> int:
    """Returns the number of characters in all texts of a value. Raises ValueError if it has more
    values than the limit, which includes a container that contains itself."""
    total, num_values, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        num_values += 1
        if num_values + len(waiting) > limits.values:
            raise ValueError(
                f"a call's messages have more than {limits.values} values, or contain themselves"
            )
        if _is(item, str):
            total += str.__len__(item)
        elif _is(item, dict):
            waiting += islice(dict.keys(item), limits.values)
            waiting += islice(dict.values(item), limits.values)
        elif _is(item, list) or _is(item, tuple):
            sequence_type: Any = list if _is(item, list) else tuple
            waiting += islice(sequence_type.__iter__(item), limits.values)
    return total


def without_surrogates(text: str) -> str:
    """Returns the text with lone surrogates, which UTF-8 cannot encode, replaced."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def printable(text: str) -> str:
    """Returns the text with control characters escaped, so that a terminal does not obey them."""
    return _CONTROL.sub(lambda match: _escape(match[0]), without_surrogates(text))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


SHORT_KEY = 200
"""Keys up to this length are never cut: two cut keys could be equal."""


class _Whole(NamedTuple):
    """A container that was reduced without a cut, and how much of the limits that used."""

    container: Any  # keeps the object alive, so that its id is not reused
    reduced: Any
    depth: int
    values: int
    characters: int


class _Reduction:
    """Reduces one value and counts how much of the limits is used.

    A container that occurs again is reused if it fits into the rest of the limits: a few nested
    lists that contain each other twice would otherwise take 100,000 calls.
    """

    def __init__(self, limits: PlainLimits) -> None:
        self._max_depth = limits.depth
        self._values_left = limits.values
        self._characters_left = limits.characters
        self._above: set[int] = set()  # ids of the containers around the present value
        self._whole: dict[int, _Whole] = {}
        self.num_cuts = 0

    def plain(self, value: Any, depth: int) -> Any:
        self._values_left -= 1
        value_type = type(value)
        if value is None or value is True or value is False or value_type is float:
            return value
        # Most values are plain already: test the usual types first.
        if value_type is dict or value_type is list:
            return self._container(value, value_type, depth)
        if _is(value, str):
            return self._text(str.__str__(value))
        if _is(value, int):
            number = int.__int__(value)
            bits = number.bit_length()
            return number if bits <= MAX_INTEGER_BITS else f"<integer of {bits} bits>"
        if _is(value, float):
            return float.__float__(value)
        for base in (dict, list, tuple, set, frozenset):
            if _is(value, base):
                return self._container(value, base, depth)
        if _is(value, bytes | bytearray):
            bytes_type: Any = bytes if _is(value, bytes) else bytearray
            length = bytes_type.__len__(value)
            text = repr(bytes(bytes_type.__getitem__(value, slice(MAX_BYTES_SHOWN))))
            cut = "" if length <= MAX_BYTES_SHOWN else f"… [cut: {length} bytes]"
            return self._text(text + cut)
        return self._other(value, depth)

    def _text(self, text: str) -> str:
        if len(text) > self._characters_left:
            self.num_cuts += 1
            text = f"{text[: self._characters_left]}… [cut: {len(text)} characters]"
            self._characters_left = 0
        else:
            self._characters_left -= len(text)
        return without_surrogates(text)

    def _container(self, value: Any, base: type, depth: int) -> Any:
        if id(value) in self._above:
            self.num_cuts += 1
            return f"<{type_name(type(value))} within itself>"
        if depth >= self._max_depth:
            self.num_cuts += 1
            return f"<{type_name(type(value))} below {self._max_depth} others>"
        reduced_before = self._whole.get(id(value))
        if (
            reduced_before is not None
            and depth <= reduced_before.depth
            and reduced_before.values <= self._values_left
            and reduced_before.characters <= self._characters_left
        ):
            self._values_left -= reduced_before.values
            self._characters_left -= reduced_before.characters
            return reduced_before.reduced
        num_cuts, values, characters = self.num_cuts, self._values_left, self._characters_left
        self._above.add(id(value))
        try:
            if base is dict:
                reduced: Any = self._dict(value, depth + 1)
            else:
                reduced = self._sequence(value, base, depth + 1)
        finally:
            self._above.discard(id(value))
        if self.num_cuts == num_cuts:
            used = values - self._values_left, characters - self._characters_left
            self._whole[id(value)] = _Whole(value, reduced, depth, *used)
        return reduced

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in self._items(dict.items(value)):
            if self._values_left <= 0:
                break
            name = self._key(key, depth)  # before its value, which may use up the limit
            result[name] = self.plain(item, depth)
        if (left_out := dict.__len__(value) - len(result)) > 0 and self._values_left <= 0:
            self.num_cuts += 1
            result["…"] = f"<{left_out} more>"
        return result

    def _sequence(self, value: Any, base: Any, depth: int) -> list[Any]:
        result = []
        for item in self._items(base.__iter__(value)):
            if self._values_left <= 0:
                break
            result.append(self.plain(item, depth))
        if (left_out := base.__len__(value) - len(result)) > 0:
            self.num_cuts += 1
            result.append(f"<{left_out} more>")
        # The order of a set differs from process to process.
        return sorted(result, key=repr) if base in (set, frozenset) else result

    def _items(self, items: Iterable[Any]) -> list[Any]:
        """Returns as many items as the limit allows, copied in one call of C: another thread of the
        episode may change the container at any time."""
        return list(islice(items, max(self._values_left, 0)))

    def _key(self, key: Any, depth: int) -> str:
        """Returns the key as JSON writes it."""
        if type(key) is str:
            is_short = len(key) <= SHORT_KEY
            return without_surrogates(key) if is_short else self._text(key)
        plain = self.plain(key, depth)
        if plain is None or isinstance(plain, bool):
            return {None: "null", True: "true", False: "false"}[plain]
        return plain if isinstance(plain, str) else repr(plain)

    def _other(self, value: Any, depth: int) -> Any:
        """Converts an array to its numbers, a mapping to a dict, any other object to its text."""
        if _is_array(value) and depth < self._max_depth:
            try:
                size = int(value.numel() if hasattr(value, "numel") else value.size)
                if size <= self._values_left:
                    plain_numbers = value.tolist()
                    # `tolist` returns numpy's longdouble unchanged: Python has no such type.
                    return self.plain(
                        float(plain_numbers) if _is_array(plain_numbers) else plain_numbers,
                        depth + 1,
                    )
            except (KeyboardInterrupt, MemoryError):
                raise
            except BaseException:  # noqa: BLE001  # a subclass, or an array without memory
                return self._text(f"<{type_name(type(value))} object>")
        mapping: dict[Any, Any] | None = None
        try:
            if isinstance(value, Mapping):  # not a dict: a view of one, for example
                mapping = dict(islice(value.items(), max(self._values_left, 0)))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # the user's code
            pass
        if mapping is not None:
            return self.plain(mapping, depth)
        try:
            return self._text(str.__str__(str(value)))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  # the user's code; libraries in Rust panic outside Exception
            return self._text(f"<{type_name(type(value))} object>")


def _is(value: Any, base: Any) -> bool:
    """Like `isinstance`, but never asks the object, whose `__class__` may lie."""
    return issubclass(type(value), base)


def _is_array(value: Any) -> bool:
    """Returns True for numbers and arrays of numpy and torch, without importing either."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = [getattr(numpy, "ndarray", None), getattr(numpy, "generic", None)]
    return any(
        array_type and _is(value, array_type)
        for array_type in (*kinds, getattr(torch, "Tensor", None))
    )


def type_name(cls: type) -> str:
    """Returns the name of the class, whatever its metaclass defines as `__name__`."""
    return type.__dict__["__name__"].__get__(cls)[:100]
