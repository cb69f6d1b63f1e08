"""Checks for replies that are malformed as text or as a tool call, as pure functions of the reply.

malformed(CheckedReply("π ≤ 4, café, привет, 日本語"), ["nonsense"])    {}
malformed(CheckedReply("ok \\ufffd\\ufffd"), ["nonsense"])    {"nonsense": "U+FFFD 2x"}
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ajet.core.inference.endpoint import FinishReason
from ajet.core.inference.tool_parser import ParsedReply
from ajet.core.inference.tool_schema import first_violation

if TYPE_CHECKING:
    from ajet.core.config.rollout import Check

LONGEST_CYCLE = 256  # characters, as for all numbers below
MIN_REPEATED, MIN_TIMES = 2000, 8
MIN_REPEATED_AT_A_CUT, MIN_TIMES_AT_A_CUT = 300, 4
CHARS_PER_NON_TEXT = 500
MAX_SHOWN_CHARS = 60

_NON_TEXT = re.compile(
    "[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ufffd"  # control characters, broken UTF-8
    "\ud800-\udfff\ue000-\uf8ff\U000f0000-\U0010ffff"  # surrogates, private use
    "\ufdd0-\ufdef\ufffe\uffff\U0001fffe\U0001ffff\U0002fffe\U0002ffff\U0003fffe\U0003ffff"
    "\U00040000-\U000dffff]"
)
_FORMAT_1 = re.compile(
    r"\s*+(?:<think>)?(?:(?!</?think>).)*</think>\s*"  # a template may have written the opening
    r"```python[^\S\n]*\n(?:(?!^```).)*^```\s*",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """Holds what the checks read. `parsed` is None for a call with token ids, whose reply is not
    parsed; `messages` and `tools` are the prompt's."""

    text: str
    finish_reason: FinishReason = "stop"
    parsed: ParsedReply | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    messages: Sequence[Mapping[str, Any]] = ()

    @property
    def is_cut(self) -> bool:
        return self.finish_reason == "length"


def malformed(reply: CheckedReply, checks: Iterable[Check]) -> dict[str, str]:
    """Returns the checks that the reply fails, each with its reason in one line."""
    results = ((name, CHECKS[name](reply)) for name in checks)
    return {name: reason for name, reason in results if reason is not None}


def _nonsense(reply: CheckedReply) -> str | None:
    """Finds characters that no text has, if they are more than one in 500, or a repetition without
    end. It depends on no language and no list of allowed characters: letters, mathematics and emoji
    of every script are text."""
    # The limit may have cut the reply inside a character of several tokens.
    text = reply.text.rstrip("\ufffd") if reply.is_cut else reply.text
    counts = Counter(_NON_TEXT.findall(text))
    if counts:
        # A reply may quote what it was shown, a broken file for example.
        conversation = _as_text([*reply.messages, *reply.tools])
        counts = Counter({char: n for char, n in counts.items() if char not in conversation})
    if counts.total() * CHARS_PER_NON_TEXT > len(text):
        return ", ".join(f"U+{ord(char):04X} {n}x" for char, n in counts.most_common(3))
    return _repetition(reply.text, reply.is_cut)


def _as_text(value: Any) -> str:
    """Concatenates all strings of messages and tools, unescaped."""
    if isinstance(value, str):
        return value
    inner = value.values() if isinstance(value, Mapping) else value
    return "".join(map(_as_text, inner)) if isinstance(value, Mapping | list | tuple) else ""


def _repetition(text: str, is_cut: bool) -> str | None:
    """Describes the first cycle of up to 256 characters that repeats for too long, or returns None.

    Too long is over 2,000 characters for a cycle with a letter, and over 300 for any cycle at the
    end of a reply that its limit cut. Tables, rulers, pixel art, long numbers and code pass: they
    repeat without letters, or not for long, or come to an end. Repetition with a rising number
    ("1. the 2. the") is not found. Shorter cycles are tested first, so "ababab" is a cycle of 2 and
    not of 4.
    """
    import numpy as np

    if len(text) < (MIN_REPEATED_AT_A_CUT if is_cut else MIN_REPEATED):
        return None
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    for period in range(1, min(LONGEST_CYCLE, len(codes) // 2) + 1):
        # A stretch with this period is a run of positions that equal the one a period later.
        differs = codes[period:] != codes[:-period]
        min_length = max(MIN_REPEATED, MIN_TIMES * period)
        min_at_cut = max(MIN_REPEATED_AT_A_CUT, MIN_TIMES_AT_A_CUT * period)
        shortest = min(min_length, min_at_cut) if is_cut else min_length
        if len(codes) - np.count_nonzero(differs) < shortest:
            continue  # no stretch can be long enough: the loop below is for the rare case
        breaks = np.flatnonzero(differs)
        # A run of n equal positions between two breaks is a stretch of n + period characters.
        edges = np.concatenate(([-1], breaks, [len(codes) - period]))
        lengths = np.diff(edges) - 1 + period
        longest = int(lengths.argmax())
        start, length, tail = int(edges[longest]) + 1, int(lengths[longest]), int(lengths[-1])
        cycle = text[start : start + period]
        # Without letters it is a table or a ruler, which comes to an end.
        if length >= min_length and any(char.isalpha() for char in cycle):
            return _repeats(cycle, length)
        # At a cut it did not come to an end, so a shorter stretch is enough.
        if is_cut and tail >= min_at_cut:
            return _repeats(text[-period:], tail)
    return None


def _repeats(cycle: str, length: int) -> str:
    return f"{_short(cycle)} again and again, {length} characters long"


def _wrong_toolcall(reply: CheckedReply) -> str | None:
    """Finds a call that cannot be read, names no offered tool, or does not fit its schema."""
    parsed = reply.parsed
    if parsed is None:
        return None
    if parsed.malformed:
        return f"not a call that can be read: {_short(parsed.malformed[0])}"
    offered = {}
    for tool in reply.tools:
        function = tool.get("function", tool)
        offered[function.get("name")] = function.get("parameters")
    for call in parsed.tool_calls:
        if call.name not in offered:
            names = ", ".join(map(str, offered)) or "none"
            return f"no tool {_short(call.name)} was offered, but {names}"
        error = first_violation(call.name, offered[call.name] or {}, call.arguments)
        if error is not None:
            path = "".join(f"[{step!r}]" for step in error.absolute_path)
            message = _short(error.message, quoted=False)
            return f"{call.name}: {path}: {message}" if path else f"{call.name}: {message}"
    return None


def _not_format_type_1(reply: CheckedReply) -> str | None:
    if _FORMAT_1.fullmatch(reply.text):
        return None
    return "not <think>…</think> and then one ```python block, and nothing else"


def _non_ascii(reply: CheckedReply) -> str | None:
    if reply.text.isascii():
        return None
    first = next(char for char in reply.text if not char.isascii())
    return f"{_short(first)} is the first of {sum(not c.isascii() for c in reply.text)}"


def _short(text: str, quoted: bool = True) -> str:
    short = text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
    return repr(short) if quoted else " ".join(short.split())


CHECKS: dict[str, Callable[[CheckedReply], str | None]] = {
    "nonsense": _nonsense,
    "wrong_toolcall": _wrong_toolcall,
    "format_type_1": _not_format_type_1,
    "non_ascii": _non_ascii,
}
