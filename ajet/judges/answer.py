"""Finds the answer in an agent's text, and the reference answer in a task's row."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ajet.core.errors import DataError
from ajet.core.errors.codes import Code
from ajet.core.judge.judge import BaseJudge
from ajet.core.task.task import Task
from ajet.judges.number_forms import decimal_text, is_number

SCANNED_CHARACTERS = 50_000
"""A box is looked for only in this many characters at the end of a text, about 12,000 tokens, so
that no text blocks the event loop."""

_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\{|\}")
_BOX_WITHOUT_BRACES = re.compile(
    r"\\(?:boxed|fbox)\s*(?=[-+\u2212]?(?:\.?\d|\\[a-zA-Z]|[a-zA-Z]\s*[-+*/^=_$\\]))"
)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_REST_OF_FORMULA = re.compile(r"[^\n$]{1,500}?(?=\$|\\[)\]])")
_WORD = re.compile(r"[^\s$]+")


def boxed(text: str) -> str | None:
    """Returns the content of the last complete ``\\boxed{…}`` with balanced braces, or of
    ``\\boxed 18`` if that comes later; None if there is neither."""
    # str() of AgentScope's content blocks doubles the backslashes.
    is_escaped = text[:SCANNED_CHARACTERS].lstrip().startswith("[{") and "\\\\" in text
    text = text[-SCANNED_CHARACTERS:]
    if is_escaped:
        text = text.replace("\\\\", "\\").replace("\\n", "\n")
    open_braces: list[tuple[int, bool]] = []  # (position after the brace, whether it opens a box)
    start, end = -1, -1
    for brace in _BRACES.finditer(text):
        if brace.group() != "}":
            open_braces.append((brace.end(), brace["box"] is not None))
        elif open_braces:
            inside, is_box = open_braces.pop()
            # The box that begins last wins, so of nested boxes the inner one.
            if is_box and inside > start:
                start, end = inside, brace.start()
    # A box without braces inside the last complete one is part of its content.
    without_braces = list(_BOX_WITHOUT_BRACES.finditer(text, max(end, 0)))
    if without_braces:
        return _without_braces(text, without_braces[-1].end())
    return text[start:end] if start >= 0 else None


def _without_braces(text: str, start: int) -> str | None:
    """Returns what ``\\boxed 18`` holds: the rest of the formula, as in MATH's grader; outside a
    formula, one word."""
    # An odd number of dollars before it on the line, or an open \( or \[: inside a formula.
    before = text[text.rfind("\n", 0, start) + 1 : start]
    is_formula = (
        before.count("$") % 2 == 1
        or before.rfind(r"\(") > before.rfind(r"\)")
        or before.rfind(r"\[") > before.rfind(r"\]")
    )
    content = _REST_OF_FORMULA.match(text, start) if is_formula else None
    content = content or _WORD.match(text, start)
    return content.group().rstrip(".,;:* ") if content else None


MISSING = ("nan", "n/a", "#n/a", "<na>")
"""A missing value as text, as pandas and spreadsheets write it."""


class UnusableReference(DataError):
    """The task's row has no reference that a reply could equal."""

    usual_code = Code.ROW_FORM

    def __init__(self, task: Task, problem: str) -> None:
        super().__init__(f"task {task.task_id}: {problem}")
        self.problem = problem


class ReferenceJudge(BaseJudge):
    """Base class of judges that compare the agent's answer with the row's reference answer."""

    def reference(self, task: Task) -> str:
        """Returns the reference; raises `UnusableReference` if no reply can equal it. `ajet check`
        calls this for every task."""
        return reference_answer(task)


def reference_answer(task: Task) -> str:
    """Returns the row's ``answer`` (what follows ``####`` in GSM8K), verl's
    ``reward_model.ground_truth``, or the box in MATH's ``solution``. A number is written in
    decimals: 0.00001 rather than Python's 1e-05, and 2 rather than 2.0. Raises `UnusableReference`
    if the row has none of them, or one that no reply can equal."""
    column, value = _reference(task)
    if isinstance(value, list | tuple):
        problem = f"{column} is {'a list of several values' if value else 'an empty list'}"
        raise UnusableReference(task, problem)
    if isinstance(value, Mapping | bytes):
        problem = f"{column} is a {type(value).__name__}, not text or a number"
        raise UnusableReference(task, problem)
    if isinstance(value, str) and value.strip().lower() in MISSING:
        raise UnusableReference(task, f"{column} is {value.strip()}, which no reply can equal")
    structure: Any = _json(value) if isinstance(value, str) else None
    # A JSON object, or a list of several with texts; a list of numbers may be an interval.
    is_list = isinstance(structure, list) and len(structure) > 1
    if isinstance(structure, dict) or (is_list and any(isinstance(v, str) for v in structure)):
        raise UnusableReference(
            task, f"{column} is JSON text, {value[:40]}, that no reply can equal"
        )
    try:
        text = decimal_text(value) if is_number(value) else final_part(str(value))
    except ValueError as error:
        raise UnusableReference(task, f"{column} {error}, which no reply can equal") from None
    if not text:
        raise UnusableReference(task, f"{column} is empty")
    return text


def _json(text: str) -> Any:
    """Returns the object or list that is written in the text as JSON, else None."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def has_number(task: Task) -> bool:
    """Returns whether the row holds its reference as a number rather than as text."""
    return is_number(_reference(task)[1])


def _reference(task: Task) -> tuple[str, Any]:
    """Returns the reference as the row has it (the element of a list of one), and its column."""
    row = task.metadata
    sources = [
        ("answer", row, "answer"),
        ("reward_model.ground_truth", row.get("reward_model"), "ground_truth"),
        ("solution", row, "solution"),
    ]
    null_columns = []
    for column, mapping, key in sources:
        if not isinstance(mapping, Mapping) or key not in mapping:
            continue
        value = mapping[key]
        if hasattr(value, "tolist") and not is_number(value):
            value = value.tolist()  # a numpy array
        if isinstance(value, str) and isinstance(held := _json(value), list):
            value = held if len(held) == 1 and isinstance(held[0], str) else value  # Skywork-OR1
        if isinstance(value, list | tuple) and len(value) == 1:
            value = value[0]
        if value is not None:
            return column, value
        null_columns.append(column)
    if null_columns:
        raise UnusableReference(task, f"{null_columns[0]} is null")
    names = ", ".join(column for column, *_ in sources)
    has = ", ".join(sorted(row)) or "nothing"
    raise UnusableReference(task, f"no reference answer: its row has {has}; looked for {names}")


def final_part(text: str) -> str:
    """Returns what follows the last ``####``; without one, the content of the last box; without
    one, the whole text."""
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    box = boxed(text)
    return (text if box is None else box).strip()


def final_answer(metadata: Mapping[str, Any]) -> str:
    if "final_answer" not in metadata:
        raise KeyError(
            "the workflow's output has no metadata['final_answer'] "
            f"(it has {sorted(metadata) or 'nothing'})"
        )
    return str(metadata["final_answer"])


def as_integer(text: str) -> str | None:
    """Returns a plain integer in canonical form, or None for anything else (``1,234``, ``12.0``,
    ``$12``)."""
    text = text.strip()
    if not _INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-").lstrip("0") or "0"
    return f"-{digits}" if text.startswith("-") and digits != "0" else digits
