"""Determines an episode's reward, the workflow's own or the judge's, and checks its values.

Whatever passes is finite and of Python's types, except the values in `metadata`.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ajet.core.errors import BlockingCall
from ajet.core.judge.judge import BaseJudge, GroupJudge
from ajet.core.process.bounded_loop import is_being_cancelled
from ajet.core.process.interrupt import is_from_user_code
from ajet.core.task.workflow_task import LARGEST_REWARD, WorkflowOutput, WorkflowTask
from ajet.core.text.error_text import first_line, message_of, one_line
from ajet.core.text.plain_value import is_bool, kind_of, plain_text, printable

Result = TypeVar("Result")

MAX_LOG_METRICS, MAX_METRIC_NAME_LENGTH = 1000, 200


class JudgeFault(Exception):
    """Raised when there is no usable verdict; the message names the judge."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Holds a reward and a success. `output` is the workflow's, with the judge's additions."""

    reward: float
    is_success: bool | None
    output: WorkflowOutput


def checked_output(output: Any, workflow_name: str) -> WorkflowOutput:
    """Returns a copy of the workflow's return value with plain fields. Raises a `TypeError` or
    `ValueError` of one line for a value that is not allowed."""
    if not isinstance(output, WorkflowOutput):
        raise TypeError(
            f"{workflow_name}.execute() returned {kind_of(output)}: return a WorkflowOutput"
        )
    name = f"{workflow_name}: WorkflowOutput"
    checked = copy.copy(output)  # the workflow may keep its object
    is_success = None
    if output.reward is not None:
        advice = "give one number or bool, or None to ask the judge"
        checked.reward, is_success = _reward_and_success(output.reward, f"{name}.reward", advice)
    if output.is_success is not None:  # comes before the success that a bool as reward implies
        is_success = output.is_success
    checked.is_success = _success(is_success, f"{name}.is_success", "give a bool or None")
    checked.metadata = _dict(output.metadata, f"{name}.metadata")
    checked.log_metrics = _numbers(output.log_metrics, f"{name}.log_metrics")
    checked.agent_rewards = _numbers(output.agent_rewards, f"{name}.agent_rewards")
    return checked


async def verdict(
    judge: BaseJudge | None,
    workflow_task: WorkflowTask,
    output: WorkflowOutput,
    timeout_s: float | None,
) -> Verdict:
    """Returns the episode's verdict. The judge is called only if the workflow gave no reward."""
    if output.reward is not None:
        return Verdict(output.reward, output.is_success, output)
    if judge is None:
        raise JudgeFault(
            "no reward: the workflow left it to the judge, "
            "and ajet.task_judge.judge_protocol is null"
        )
    output = _copy_output(output)
    answer = await _answer(judge, judge.compute_reward, (workflow_task, output), timeout_s)
    return _or_judge_fault(partial(_checked_verdict, answer, output, _name(judge)))


async def group_verdicts(
    judge: GroupJudge,
    workflow_tasks: Sequence[WorkflowTask],
    outputs: Sequence[WorkflowOutput],
    timeout_s: float | None,
) -> list[Verdict]:
    """Returns the verdict of each member of a group, judged together."""
    copies = [_copy_output(output) for output in outputs]
    arguments = (list(workflow_tasks), list(copies))  # the judge may change its lists
    answer = await _answer(judge, judge.compute_group_rewards, arguments, timeout_s)
    return _or_judge_fault(partial(_checked_verdicts, answer, copies, _name(judge)))


def require_rewards(judged: Verdict, names: Sequence[str], source: str) -> None:
    """Raises JudgeFault unless the verdict has all rewards that gdpo compares. `source` names who
    gave it: "workflow" or "judge"."""
    missing = [name for name in names if name not in judged.output.log_metrics]
    if missing:
        raise JudgeFault(
            f"the {source} gave no log_metrics[{missing[0]!r}], which "
            "ajet.trainer_common.algorithm.reward_weights names"
        )


def require_agent_rewards(judged: Verdict, agents: Iterable[str], source: str) -> None:
    """Raises JudgeFault if some agents have rewards and one of `agents`, whose calls are trained,
    has none."""
    rewards = judged.output.agent_rewards
    missing = [agent for agent in agents if rewards and agent not in rewards]
    if missing:
        raise JudgeFault(
            f"the {source} gave agent_rewards for {', '.join(rewards)}, and none for "
            f"{missing[0]!r}, whose calls are trained"
        )


def _name(judge: BaseJudge) -> str:
    return f"judge {type(judge).__name__!r}"


def _copy_output(output: WorkflowOutput) -> WorkflowOutput:
    """Returns a copy for the judge to write to, so that one that fails changes nothing."""
    output = copy.copy(output)
    output.log_metrics = dict(output.log_metrics)
    output.agent_rewards = dict(output.agent_rewards)
    return output


async def _answer(
    judge: BaseJudge, method: Callable[..., Any], arguments: Sequence[Any], timeout_s: float | None
) -> Any:
    """Returns the result of the judge's method. Raises JudgeFault for whatever it raises, and
    where it takes longer than `timeout_s`."""
    ask = partial(method, *arguments)
    if judge.thread_lock is None or inspect.iscoroutinefunction(method):
        return await _within_deadline(ask, _name(judge), timeout_s)
    # One call at a time. The deadline starts inside the lock: waiting for others does not count.
    async with judge.thread_lock:
        return await _within_deadline(partial(_in_thread, ask), _name(judge), timeout_s)


async def _within_deadline(ask: Callable[[], Any], name: str, timeout_s: float | None) -> Any:
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await _call(ask)
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise  # the run itself ends
    except BaseException as error:  # libraries in Rust panic outside Exception
        if deadline.expired():
            raise JudgeFault(f"{name} gave no verdict within {timeout_s:g} s") from None
        raise JudgeFault(f"{name} raised {one_line(error)}") from error


async def _call(ask: Callable[[], Any]) -> Any:
    """Calls the judge and returns its answer. An attempt to end the process or the task becomes a
    RuntimeError, because these exceptions would end the run."""
    try:
        try:
            answer: Any = ask()
        except BlockingCall:  # a plain judge that asks the environment may do so in a thread
            answer = _in_thread(ask)
        return await answer if inspect.isawaitable(answer) else answer
    except SystemExit as error:
        message = f"it called sys.exit({error.code!r})"
        raise RuntimeError(message).with_traceback(error.__traceback__) from error
    except KeyboardInterrupt as error:
        if not is_from_user_code(error):  # Ctrl-C
            raise
        raise RuntimeError("it raised KeyboardInterrupt") from error
    except GeneratorExit as error:
        raise RuntimeError("it raised GeneratorExit") from error
    except asyncio.CancelledError as error:
        if is_being_cancelled():  # by the run, or by the deadline
            raise
        raise RuntimeError("it cancelled itself").with_traceback(error.__traceback__) from error


async def _in_thread(ask: Callable[[], Any]) -> Any:
    """Calls the judge in a thread, and awaits what it returns on this event loop."""

    def call() -> Any:
        try:
            return ask()
        except StopIteration as error:  # a future cannot hold it
            raise RuntimeError("it raised StopIteration") from error

    answer = await asyncio.to_thread(call)
    return await answer if inspect.isawaitable(answer) else answer


def _or_judge_fault(check: Callable[[], Result]) -> Result:
    try:
        return check()
    except (Exception, SystemExit) as error:  # a number's own methods may do anything
        raise JudgeFault(first_line(message_of(error)) or one_line(error)) from error


def _checked_verdicts(answer: Any, outputs: Sequence[WorkflowOutput], name: str) -> list[Verdict]:
    if not isinstance(answer, tuple | list) or len(answer) != len(outputs):
        raise TypeError(
            f"{name} returned {kind_of(answer)}: return a list of {len(outputs)}, "
            "one reward or (reward, is_success) for each member"
        )
    return [_checked_verdict(a, o, name) for a, o in zip(answer, outputs, strict=True)]


def _checked_verdict(answer: Any, output: WorkflowOutput, name: str) -> Verdict:
    """Returns the verdict of a judge's answer: a number, a bool, or a pair of them."""
    answer, reward_name = _scalar(answer), f"{name}: the reward"
    if is_bool(answer) or isinstance(answer, numbers.Real):
        reward, is_success = _reward_and_success(answer, reward_name, "return a number")
    elif isinstance(answer, tuple | list) and len(answer) == 2:
        reward = _reward(answer[0], reward_name, "return a number")
        is_success = _success(answer[1], f"{name}: is_success", "return a bool")
    else:
        raise TypeError(
            f"{name} returned {kind_of(answer)}: return a reward or (reward, is_success)"
        )
    return Verdict(reward, is_success, checked_output(output, name))


def _reward_and_success(value: Any, name: str, advice: str) -> tuple[float, bool | None]:
    """Returns the reward and the success of one value: a number has no success."""
    value = _scalar(value)
    if is_bool(value):
        return float(value), bool(value)
    return _reward(value, name, advice), None


def _scalar(value: Any) -> Any:
    """Returns the element of a numpy or torch array without dimensions (None where it is masked),
    and every other value unchanged."""
    is_array = type(value).__module__.partition(".")[0] in ("numpy", "torch")
    if not is_array or getattr(value, "shape", None) != () or _is_time(value):
        return value  # the item of a time is a count of units, which would pass for a number
    return None if getattr(value, "mask", False) else value.item()


def _is_time(value: Any) -> bool:
    """Tells whether this is a time or a duration of numpy, which are registered as integers."""
    return getattr(getattr(value, "dtype", None), "kind", "") in ("m", "M")


def _reward(value: Any, name: str, advice: str) -> float:
    """Returns the value as a float that is small enough to be squared and summed."""
    number = _finite(value, name, advice)
    if abs(number) > LARGEST_REWARD:
        raise ValueError(f"{name} is {number:g}: give one of at most {LARGEST_REWARD:g} in size")
    return number


def _finite(value: Any, name: str, advice: str) -> float:
    """Returns a number of Python's, numpy's or torch's as a float."""
    # A bool is refused: as the first of a pair it is the slip ``(is_success, reward)``.
    value = _scalar(value)
    if not isinstance(value, numbers.Real) or is_bool(value) or _is_time(value):
        raise TypeError(f"{name} is {kind_of(value)}: {advice}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large for a float") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}: return a finite number")
    return number


def _success(value: Any, name: str, advice: str) -> bool | None:
    """Returns a bool for True, False, 0, 1 and their numpy types, and None for None. Other truthy
    or falsy values are refused as slips."""
    value = _scalar(value)
    if value is None:
        return None
    if is_bool(value) or (isinstance(value, numbers.Integral) and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} is {kind_of(value)}: {advice}")


def _numbers(value: Any, name: str) -> dict[str, float]:
    """Returns the metrics with names and values that every logger accepts."""
    metrics = _dict(value, name)
    if len(metrics) > MAX_LOG_METRICS:
        raise ValueError(f"{name} has {len(metrics)} entries: give at most {MAX_LOG_METRICS}")
    checked: dict[str, float] = {}
    for key, number in metrics.items():
        key = printable(plain_text(key, MAX_METRIC_NAME_LENGTH)).replace("\n", "\\n")
        checked[key] = _reward(number, f"{name}[{key!r}]", "give a number")
    return checked


def _dict(value: Any, name: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"{name} is {kind_of(value)}: give a dict")
    return value
