r"""Judges whether the agent's last ``\boxed{…}`` equals the reference answer mathematically.

What a comparison as text cannot decide (``2x+1`` and ``1+2x``), math-verify does, in a separate
process: its time limit, a signal to the main thread, cannot stop a long computation.
"""

from __future__ import annotations

import re
from typing import Any

from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.answer import (
    SCANNED_CHARACTERS,
    ReferenceJudge,
    UnusableReference,
    as_integer,
    boxed,
    final_answer,
    reference_answer,
)
from ajet.judges.math_process import MathProcess
from ajet.judges.number_forms import ascii_digits, plain_numbers, unit, with_base

MAX_ANSWER_LENGTH = 500
"""A longer answer that is not a plain integer is wrong without being parsed. A longer reference is
refused."""

_MARKED_ANSWER = re.compile(r"(?:####|^[ \t*]*(?:final )?answer\s*:)[ \t*]*(\S.*)$", re.I | re.M)
_WORD = re.compile(r"[^\W\d_]{2,}|\d{4}-\d\d-\d\d")
"""An answer that is compared as text: as a formula it would be a product of letters, or a sum."""
_IN_TEXT = re.compile(r"\\(?:text|textrm|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
LETTERS = tuple("ABCDEFGHIJ")
_RELATION = re.compile(
    r"\s*(?!<.*>$)(?:\\([lgn]eq?|lt|gt)(?:slant)?(?![a-z])|([<>\u2264\u2265\u2260]=?))"
)
_OPEN_END = re.compile(r"(?:\+|\bor\s+(more|greater|less|fewer)\s*\}?)\s*$")
_PRIME = re.compile(r"(?<=[A-Za-z])\s*(?:'(?![A-Za-z])|\^\s*\{?\s*\\prime)")
_RELATIONS = {"le": "\u2264", "ge": "\u2265", "ne": "\u2260", "lt": "<", "gt": ">"}
_RELATIONS |= {"<=": "\u2264", ">=": "\u2265"}
_CHOICE = re.compile(
    r"(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*\(?([A-J])(?:\)|[.:](?=\s))\s*\}?"
    r"(?!.*\([A-J]\)).*",
    re.S,
)
"""A letter of multiple choice, with the choice itself after it."""
_BARE_NUMBER = re.compile(r"[-+]?\$?\s*\d[\d,./]*(?:[eE][-+]?\d+)?\s*(?:\\?%\s*)?\.?")


class MathJudge(ReferenceJudge):
    def reference(self, task: Task) -> str:
        reference = reference_answer(task)
        if len(reference) > MAX_ANSWER_LENGTH and as_integer(reference) is None:
            problem = f"its reference has more than {MAX_ANSWER_LENGTH} characters"
            raise UnusableReference(task, problem)
        if reference.lower() in ("proof", "notfound"):  # NuminaMath's
            raise UnusableReference(task, f"its reference is {reference}, not an answer")
        return reference

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reference = self.reference(workflow_task.task)
        answer = extract_answer(final_answer(workflow_output.metadata))
        is_success = equal_as_text(answer, reference)
        if is_success is None:  # compared one at a time; the wait counts in the judge's deadline
            is_success = await MathProcess.shared().is_equal_async(reference, answer)
        return float(is_success), is_success


def is_equal_answer(text: str, reference: str) -> bool:
    """Returns whether the answer in `text` equals `reference`. Blocks while math-verify
    computes."""
    answer = extract_answer(text)
    is_equal = equal_as_text(answer, reference)
    return MathProcess.shared().is_equal(reference, answer) if is_equal is None else is_equal


def extract_answer(text: str) -> str:
    """Returns the content of the last box; without one, what follows the last ``####`` or line that
    begins with ``Answer:``; without these, all of `text` if it is nothing but a number, else ""."""
    answer = boxed(text)
    if answer is not None:
        return answer
    if marked := _MARKED_ANSWER.findall(text[-SCANNED_CHARACTERS:]):
        return marked[-1].strip(" \t*$").removesuffix(".").strip(" $")
    if len(text) <= MAX_ANSWER_LENGTH:
        text = ascii_digits(text)
    text = text.strip()
    is_number = len(text) <= MAX_ANSWER_LENGTH and _BARE_NUMBER.fullmatch(text)
    return text.removesuffix(".") if is_number else ""


def equal_as_text(answer: str, reference: str) -> bool | None:
    r"""Makes the comparisons that take microseconds; returns None where math-verify is needed.

    12  vs 12            two plain integers are compared as such
    1e-05 vs 0.00001     each number is first written in one form (number_forms.py)
    10101_2 vs 10101     numbers in other bases than ten are equal if digits and base are
    \geq 5 vs 5          a relation or an open end (5+, 5 or more) has to be the same
    5 cm vs 5 m          usual units have to be the same where both have one
    (B) 5 vs B           a letter of multiple choice may have its choice after it
    """
    integers = as_integer(answer), as_integer(reference)
    if None not in integers:
        return integers[0] == integers[1]
    if not answer.strip() or len(answer) > MAX_ANSWER_LENGTH:
        return False
    if answer.strip() == reference:
        return True
    if _WORD.fullmatch(reference):
        word = _IN_TEXT.sub(r"\1", answer).strip(" .")
        if _WORD.fullmatch(word) or reference[0].isdigit():
            return word.casefold() == reference.casefold()
    if reference in LETTERS and (choice := _CHOICE.fullmatch(answer.strip())):
        return choice[1] == reference
    answer, reference = plain_numbers(answer), plain_numbers(reference)
    if _left_out(answer) != _left_out(reference):
        return False
    units = unit(answer), unit(reference)
    if None not in units and units[0] != units[1]:
        return False
    integers = as_integer(answer), as_integer(reference)
    if None not in integers:
        return integers[0] == integers[1]
    return True if answer == reference else None


def _left_out(text: str) -> tuple[Any, ...]:
    r"""Returns what math-verify leaves out of a text: it reads 10101_2 as 10101, \geq 5 as 5, and
    x' as x."""
    return with_base(text), _relation(text), len(_PRIME.findall(text))


def _relation(text: str) -> str | None:
    r"""Returns the relation to a number that a text begins with, as \geq 5, or ends with, as 5+ or
    \text{5 or more}."""
    if begin := _RELATION.match(text):
        sign = begin[1] or begin[2]
        return _RELATIONS.get(sign[:2], sign)
    end = _OPEN_END.search(text)
    return end and _RELATIONS["le" if end[1] in ("less", "fewer") else "ge"]
