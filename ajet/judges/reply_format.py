"""The reply formats that a judging model is asked for, and their strict parsing.

A JSON object counts, or a line of plain text if the reply has no such object. Thinking before
``</think>`` is skipped. Whatever is wrong raises `MalformedReply`; nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

READ_CHARACTERS = 10_000
"""Only the end of a reply is read, so that no reply blocks the event loop."""

_NUMBER = r"[-+]?\d+(?:\.\d+)?"
_LINE = re.compile(
    rf"^[ \t*_#]*scores?[ \t*_]*[:=][ \t*_]*({_NUMBER}(?:[ \t]*,[ \t]*{_NUMBER})*)[ \t.*_]*$",
    re.IGNORECASE | re.MULTILINE,
)
_ITEM = re.compile(r"^[ \t]*(\d+)[.)][ \t]+(\S.*)$", re.MULTILINE)

Read = TypeVar("Read", covariant=True)


class MalformedReply(Exception):
    """The reply does not have the requested format; the message is sent back to the model."""


class ReplyFormat(Protocol, Generic[Read]):
    """What the model is asked to write, and how its reply is read."""

    @property
    def instruction(self) -> str: ...

    def read(self, reply: str) -> Read: ...


@dataclass(frozen=True, slots=True)
class Scores:
    values: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ScoresFormat:
    """Asks for `count` scores from `low` to `high`; `item_name` names what each score is for."""

    count: int
    low: float
    high: float
    item_name: str = "answer"

    @property
    def instruction(self) -> str:
        scale = f"a number from {self.low:g} (worst) to {self.high:g} (best)"
        if self.count == 1:
            form = f'{{"reason": "<one sentence>", "score": <{scale}>}}'
            return f"Reply with this JSON object alone: {form}"
        form = f'{{"reason": "<one sentence>", "scores": [<{self.count} numbers>]}}'
        return (
            f"Reply with this JSON object alone: {form}, with one score for each "
            f"{self.item_name} in the order above, each {scale}."
        )

    def read(self, reply: str) -> Scores:
        text = _without_thinking(reply)
        objects = _objects(text, ("score", "scores"))
        if objects:
            value = objects[-1].get("scores", objects[-1].get("score"))
            values = value if isinstance(value, list) else [value]
            reason = objects[-1].get("reason")
        else:  # one line: Scores: 7, 9, 2
            lines = _LINE.findall(text)
            if len(lines) != 1:
                several = "several lines with scores" if lines else "no JSON object with a score"
                raise MalformedReply(f"it has {several}")
            values, reason = [float(number) for number in lines[0].split(",")], ""
        if len(values) != self.count:
            raise MalformedReply(f"it has {len(values)} scores, not {self.count}")
        scores = tuple(self._score(value) for value in values)
        return Scores(scores, reason if isinstance(reason, str) else "")

    def _score(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise MalformedReply(f"{json.dumps(value)[:40]} is not a number")
        if not self.low <= value <= self.high:  # also true for nan
            raise MalformedReply(
                f"{json.dumps(value)[:40]} is not from {self.low:g} to {self.high:g}"
            )
        return float(value)


@dataclass(frozen=True, slots=True)
class CriteriaFormat:
    at_least: int
    at_most: int

    @property
    def instruction(self) -> str:
        is_exact = self.at_least == self.at_most
        number = f"{self.at_least}" if is_exact else f"{self.at_least} to {self.at_most}"
        return f'Reply with this JSON object alone: {{"criteria": [<{number} texts>]}}'

    def read(self, reply: str) -> tuple[str, ...]:
        text = _without_thinking(reply)
        objects = _objects(text, ("criteria",))
        if objects:
            texts: Any = objects[-1]["criteria"]
        else:  # one numbered list that begins at 1
            items = _ITEM.findall(text)
            if [int(number) for number, _ in items] != list(range(1, len(items) + 1)) or not items:
                raise MalformedReply("it has no JSON object with criteria")
            texts = [item for _, item in items]
        if not isinstance(texts, list) or not all(isinstance(t, str) and t.strip() for t in texts):
            raise MalformedReply("its criteria are not a list of texts")
        if not self.at_least <= len(texts) <= self.at_most:
            raise MalformedReply(
                f"it has {len(texts)} criteria, not {self.at_least} to {self.at_most}"
            )
        return tuple(text.strip() for text in texts)


def _without_thinking(reply: str) -> str:
    return reply.rpartition("</think>")[2][-READ_CHARACTERS:].strip()


def _objects(text: str, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Returns the outermost JSON objects that have one of `keys`; raises `MalformedReply` if they
    differ in it."""
    objects = [value for value in _json_objects(text) if any(key in value for key in keys)]
    if len({json.dumps([value.get(key) for key in keys]) for value in objects}) > 1:
        raise MalformedReply("it has several JSON objects that contradict each other")
    return objects


def _json_objects(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            yield value
        start = text.find("{", end)
