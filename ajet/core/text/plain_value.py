"""Converts any object to plain data of a bounded size: dicts, lists, texts, numbers, bools, None.

    plain_value({"a": (1, np.float32(2)), 3: b"x"})   {"a": [1, 2.0], "3": "b'x'"}
    plain_value(10**6000)                             "<integer of 19932 bits>"
    plain_value(an object whose __repr__ raises)      "<Broken object>"
    printable("\\x1b[2Jgone")                          "\\\\x1b[2Jgone"

An episode may return anything, but the result here can always be encoded as JSON and UTF-8. It is a
copy, with a note wherever something was left out or could not be read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_INTEGER_BITS = 4096
"""Larger integers become a note of their size: Python refuses to print more than 4,300 digits."""
MAX_BYTES_SHOWN = 1000
SHORT_KEY = 200
"""Keys up to this length are never cut: two cut keys could be equal."""
_SURROGATE = re.compile("[\ud800-\udfff]")
ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""The escape of half a character in JSON, also where the other half follows."""
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
    return _Copy(limits).plain(value, 0)


def is_bool(value: Any) -> bool:
    """Tells whether this is a bool of Python's or numpy's."""
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def kind_of(value: Any) -> str:
    """Describes a value for an error by its type, and by its length or text where that is safe and
    short: the user's objects may print anything."""
    if value is None:
        return "None"
    type_name = type(value).__name__
    if isinstance(value, tuple | list | dict | set):
        return f"a {type_name} of {len(value)}"
    if isinstance(value, str | float) or (isinstance(value, int) and value.bit_length() < 100):
        return f"the {type_name} {str(value)[:40]!r}"
    return f"a value of type {type_name}"


def uncut_plain_value(value: Any, limits: PlainLimits = DEFAULT_LIMITS) -> Any:
    """Returns the value as plain data; raises ValueError if it would be cut."""
    copy = _Copy(limits)
    plain = copy.plain(value, 0)
    if copy.is_cut:
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


def num_characters(plain: Any) -> int:
    """Returns the number of characters in all texts of plain data."""
    if isinstance(plain, str):
        return len(plain)
    if isinstance(plain, dict):
        return sum(map(num_characters, plain)) + sum(map(num_characters, plain.values()))
    return sum(map(num_characters, plain)) if isinstance(plain, list) else 0


def without_surrogates(text: str) -> str:
    """Returns the text with lone surrogates, which UTF-8 cannot encode, replaced."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def has_surrogates(value: Any) -> bool:
    """Tells whether texts of JSON data have lone surrogates."""
    return _SURROGATE.search(json.dumps(value, ensure_ascii=False)) is not None


def printable(text: str) -> str:
    """Returns the text with control characters escaped, so that a terminal does not obey them."""
    return _CONTROL.sub(lambda match: _escape(match[0]), without_surrogates(text))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class _Copy:
    """Copies one value as plain data and counts how much of the limits is left. A container that
    contains itself ends at the limits."""

    def __init__(self, limits: PlainLimits) -> None:
        self._max_depth, self._values_left = limits.depth, limits.values
        self._characters_left = limits.characters
        self.is_cut = False

    def plain(self, value: Any, depth: int) -> Any:
        # The methods of builtin classes are called by the class: a subclass may override them.
        cls = type(value)
        self._values_left -= 1
        if self._values_left < 0:
            return self._left_out(cls)
        if value is None or cls is bool or cls is float:
            return value
        if issubclass(cls, str):
            return self._text(str.__str__(value))
        if issubclass(cls, int):
            number = int.__int__(value)
            bits = number.bit_length()
            return number if bits <= MAX_INTEGER_BITS else f"<integer of {bits} bits>"
        if issubclass(cls, float):
            return float.__float__(value)
        if depth >= self._max_depth:
            return self._left_out(cls)
        if issubclass(cls, dict):
            return self._dict(dict.items(value), depth)
        for base in (list, tuple, set, frozenset):
            if issubclass(cls, base):
                plain = []
                for item in self._items(base.__iter__(value)):
                    plain.append(self.plain(item, depth + 1))
                    if self._values_left < 0:
                        break
                # The order of a set differs from process to process.
                return sorted(plain, key=repr) if base in (set, frozenset) else plain
        try:
            return self._other(value, depth)
        except (Exception, SystemExit):  # noqa: BLE001  # methods of the user's class
            return f"<{type_name(cls)} object>"

    def _other(self, value: Any, depth: int) -> Any:
        """Converts an array to its numbers, a mapping to a dict, any other object to its text."""
        if hasattr(value, "tolist") and hasattr(value, "shape"):  # of numpy or torch
            if math.prod(value.shape) > self._values_left:
                self.is_cut = True
                return self._text(str(value))  # both shorten the text of a large array
            numbers = value.tolist()
            if type(numbers) is type(value):  # numpy's longdouble: Python has no such type
                numbers = float(numbers)
            return self.plain(numbers, depth)
        if isinstance(value, Mapping):  # not a dict: a view of one, for example
            return self._dict(value.items(), depth)
        if isinstance(value, bytes | bytearray):
            length = len(value)
            cut = "" if length <= MAX_BYTES_SHOWN else f"… [cut: {length} bytes]"
            return self._text(repr(bytes(value[:MAX_BYTES_SHOWN])) + cut)
        return self._text(str.__str__(str(value)))

    def _dict(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        plain = {}
        for key, item in self._items(items):
            name = key if type(key) is str else self.plain(key, depth + 1)
            if not isinstance(name, str):
                name = json.dumps(name)
            name = without_surrogates(name) if len(name) <= SHORT_KEY else self._text(name)
            plain[name] = self.plain(item, depth + 1)
            if self._values_left < 0:
                break
        return plain

    def _items(self, items: Iterable[Any]) -> list[Any]:
        """Returns as many items as the limit allows and the one to be noted as left out, copied in
        one call of C: another thread of the episode may change the container at any time."""
        return list(islice(items, self._values_left + 1))

    def _left_out(self, cls: type) -> str:
        self.is_cut = True
        return f"<{type_name(cls)} left out>"

    def _text(self, text: str) -> str:
        if len(text) > self._characters_left:
            self.is_cut = True
            text = f"{text[: self._characters_left]}… [cut: {len(text)} characters]"
            self._characters_left = 0
        else:
            self._characters_left -= len(text)
        return without_surrogates(text)


def type_name(cls: type) -> str:
    """Returns the name of the class, whatever its metaclass defines as `__name__`."""
    return type.__dict__["__name__"].__get__(cls)[:100]
