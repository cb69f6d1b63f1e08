"""One episode's reward: the workflow's own, or the judge's, checked to be a finite number."""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from typing import Any

from ajet.core.judge.judge import BaseJudge
from ajet.core.rollout.failure import one_line
from ajet.core.workflow.workflow import WorkflowOutput, WorkflowTask


class JudgeFault(Exception):
    """The judge gave no usable verdict; the message names it."""


def checked_output(output: Any, workflow_name: str) -> WorkflowOutput:
    """The workflow's return value, or a `TypeError` or `ValueError` of one line."""
    if not isinstance(output, WorkflowOutput):
        raise TypeError(
            f"{workflow_name}.execute() returned {_kind(output)}: return a WorkflowOutput"
        )
    if output.reward is not None and not _is_number(output.reward):
        raise TypeError(
            f"{workflow_name}: WorkflowOutput.reward is {_kind(output.reward)}: "
            "give one number, or None to ask the judge"
        )
    if output.reward is not None and not math.isfinite(output.reward):
        raise ValueError(f"{workflow_name}: WorkflowOutput.reward is {output.reward}")
    wrong = [name for name, value in output.log_metrics.items() if not _is_number(value)]
    if wrong:
        raise TypeError(f"{workflow_name}: log_metrics[{wrong[0]!r}] is not a number")
    return output


async def verdict(
    judge: BaseJudge | None,
    workflow_task: WorkflowTask,
    output: WorkflowOutput,
    timeout_s: float | None,
) -> tuple[float, bool | None]:
    """``(reward, is_success)``. A workflow's own reward stands; the judge is not asked then."""
    if output.reward is not None:
        return float(output.reward), output.is_success
    if judge is None:
        raise JudgeFault(
            "no reward: the workflow left it to the judge, "
            "and ajet.task_judge.judge_protocol is null"
        )
    name = type(judge).__name__
    try:
        async with asyncio.timeout(timeout_s):
            answer = judge.compute_reward(workflow_task, output)
            if inspect.isawaitable(answer):
                answer = await answer
    except TimeoutError:
        raise JudgeFault(f"judge {name!r} gave no verdict within {timeout_s:g} s") from None
    except Exception as error:
        raise JudgeFault(f"judge {name!r} raised {one_line(error)}") from error
    return _checked_verdict(answer, name)


def _checked_verdict(answer: Any, name: str) -> tuple[float, bool]:
    if not isinstance(answer, tuple | list) or len(answer) != 2:
        raise JudgeFault(f"judge {name!r} returned {_kind(answer)}: return (reward, is_success)")
    reward, is_success = answer
    if not _is_number(reward):
        raise JudgeFault(f"judge {name!r}: the reward is {_kind(reward)}: return a number")
    if not math.isfinite(reward):
        raise JudgeFault(f"judge {name!r}: the reward is {float(reward)}: return a finite number")
    if not _is_bool(is_success):
        raise JudgeFault(f"judge {name!r}: is_success is {_kind(is_success)}: return a bool")
    return float(reward), bool(is_success)


def _is_number(value: Any) -> bool:
    """Python's and numpy's numbers. A bool is none: ``(is_success, reward)`` is a common slip."""
    return isinstance(value, numbers.Real) and not _is_bool(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {str(value)[:40]!r}"
