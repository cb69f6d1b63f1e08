r"""Finds the answer in an agent's text, and the reference answer in a task's row.

"… so the total is \boxed{1{,}234}."                          -> "1{,}234"
"[{'type': 'text', 'text': 'It is \\\\boxed{7}'}]"            -> "7"   (str() of AgentScope blocks)
{"answer": "9 + 9 = 18\n#### 18"}                             -> "18"  (GSM8K)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ajet.core.task.task import Task

SCANNED_CHARACTERS = 50_000
"""A box is looked for only in this many characters at the end of a text: about twelve thousand
tokens, and few enough that no text blocks the event loop."""

_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\{|\}")
_INTEGER = re.compile(r"[+-]?\d+")


def boxed(text: str) -> str | None:
    """Returns the content of the last complete ``\\boxed{…}`` with balanced braces, or None if
    there is none."""
    is_escaped = text[:SCANNED_CHARACTERS].lstrip().startswith("[{") and "\\\\" in text
    text = text[-SCANNED_CHARACTERS:]
    if is_escaped:
        text = text.replace("\\\\", "\\").replace("\\n", "\n")
    opened: list[tuple[int, bool]] = []
    start, end = -1, -1
    for brace in _BRACES.finditer(text):
        if brace.group() != "}":
            opened.append((brace.end(), brace["box"] is not None))
        elif opened:
            inside, is_box = opened.pop()
            if is_box and inside > start:
                start, end = inside, brace.start()
    return text[start:end] if start >= 0 else None


def reference_answer(task: Task) -> str:
    """Returns the row's ``answer`` (what follows ``####`` in GSM8K), verl's
    ``reward_model.ground_truth``, or the box in MATH's ``solution``; raises `KeyError` if the row
    has none of them."""
    row = task.metadata
    reward_model = row.get("reward_model")
    if row.get("answer") is not None:
        return final_part(str(row["answer"]))
    if isinstance(reward_model, Mapping) and reward_model.get("ground_truth") is not None:
        return final_part(str(reward_model["ground_truth"]))
    if row.get("solution") is not None:
        return final_part(str(row["solution"]))
    raise KeyError(f"task {task.task_id} has no 'answer' (its row has {sorted(row)})")


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
