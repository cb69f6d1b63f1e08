r"""Judges whether the agent's last ``\boxed{…}`` equals the reference answer mathematically.

    12  vs 12            two plain integers are compared as such, in microseconds
    1,234 vs 1234, 12.0 vs 12, \frac{1}{2} vs 0.5, $12, 12\%, 2x+1 vs 1+2x      math-verify (sympy)

Without a box the answer counts only if it is nothing but a number. math-verify's own time limit
is a signal of the main thread and cannot stop a long computation of the interpreter, so it runs in
a process of its own (math_process.py), which ends itself when an answer takes too long. The event
loop is not blocked meanwhile. Answers that need that process are compared one after another, and
the wait counts in the judge's deadline.
"""

from __future__ import annotations

import re

from ajet.core.judge.judge import BaseJudge
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.judges.answer import as_integer, boxed, final_answer, reference_answer
from ajet.judges.math_process import MathProcess

MAX_ANSWER_LENGTH = 500
"""Longer answers that are no plain integers count as wrong without being parsed, because no
reference is as long."""

_BARE_NUMBER = re.compile(r"[-+]?\$?\s*\d[\d,./]*\s*(?:\\?%\s*)?\.?")


class MathJudge(BaseJudge):
    """Gives 1 for an equal answer, else 0."""

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        reference = reference_answer(workflow_task.task)
        answer = extract_answer(final_answer(workflow_output.metadata))
        is_success = equal_as_text(answer, reference)
        if is_success is None:
            is_success = await MathProcess.shared().is_equal_async(reference, answer)
        return float(is_success), is_success


def is_equal_answer(text: str, reference: str) -> bool:
    """Returns whether the answer in `text` equals `reference`. Blocks while math-verify
    computes."""
    answer = extract_answer(text)
    is_equal = equal_as_text(answer, reference)
    return MathProcess.shared().is_equal(reference, answer) if is_equal is None else is_equal


def extract_answer(text: str) -> str:
    """Returns the content of the last box; without one, all of `text` if it is nothing but a
    number, else ""."""
    answer = boxed(text)
    if answer is not None:
        return answer
    text = text.strip()
    is_number = len(text) <= MAX_ANSWER_LENGTH and _BARE_NUMBER.fullmatch(text)
    return text.removesuffix(".") if is_number else ""


def equal_as_text(answer: str, reference: str) -> bool | None:
    """Makes the comparisons that take microseconds; returns None where math-verify is needed."""
    integers = as_integer(answer), as_integer(reference)
    if None not in integers:
        return integers[0] == integers[1]
    if not answer.strip() or len(answer) > MAX_ANSWER_LENGTH:
        return False
    return True if answer.strip() == reference else None
