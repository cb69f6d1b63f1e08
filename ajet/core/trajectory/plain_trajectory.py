"""Reduces what an episode hands over to plain data, where it enters the record.

    messages and tools of a call      plain_chat, plain_messages      before the prompt is made
    names, reply and notes of a call              plain_turn          as the call is recorded
    the output's metadata, the workflow's task    plain_trajectory    as the episode is over

Everything that reads a trajectory afterwards (the record, the buffer, metrics, displays, other
processes) finds dicts, lists, texts and numbers of a bounded size. Judges are called before, so
they see the workflow's own objects. Not covered: rewards, success and `log_metrics`, which are
checked where they are returned (judge/verdict.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ajet.core.plain_value import PlainLimits, plain_text, plain_value, type_name, uncut_plain_value
from ajet.core.task.chat_messages import current_form
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.trajectory import Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes

MAX_NAME_LENGTH = 200
_NO_MESSAGES = "{} of type {}; give a list of dicts, [{{'role': 'user', 'content': 'a text'}}]"
_MESSAGE_LIMITS = PlainLimits(characters=sys.maxsize)
"""The recorder refuses a prompt that is too long, with the limit that it is too long for."""


def plain_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns copies of messages or tools as plain data. Nothing is cut, since the model sees them:
    what is too large raises ValueError, and what is no list of messages TypeError."""
    if isinstance(messages, str | Mapping):
        raise TypeError(_NO_MESSAGES.format("messages is", type_name(type(messages))))
    return [uncut_plain_value(_checked(_as_dict(message)), _MESSAGE_LIMITS) for message in messages]


def plain_chat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns copies of the messages of a call, with former function calls as tool calls."""
    return current_form(plain_messages(messages))


def _as_dict(message: Any) -> dict[Any, Any]:
    """Returns a copy of a mapping, or of an object of a client library that iterates as one."""
    try:
        return dict(message)
    except (TypeError, ValueError) as error:
        name = type_name(type(message))
        raise TypeError(_NO_MESSAGES.format("a message is", name)) from error


def _checked(message: dict[Any, Any]) -> dict[Any, Any]:
    """Raises ValueError for content that would only become text by being reduced."""
    content = message.get("content")
    if not isinstance(content, str | list | tuple | Mapping | None):
        raise ValueError(f"a message's content is of type {type_name(type(content))}; give text")
    return message


def plain_turn(turn: Turn) -> Turn:
    """Returns the turn with plain data; its messages and tools are plain already."""
    return replace(
        turn,
        reply=plain_value(turn.reply),
        agent_name=plain_text(turn.agent_name, MAX_NAME_LENGTH),
        target_tag=plain_text(turn.target_tag, MAX_NAME_LENGTH),
        notes=TurnNotes.from_json(plain_value(turn.notes.as_json())),
    )


def plain_trajectory(trajectory: Trajectory) -> Trajectory:
    """Returns the trajectory of an episode that is over, with plain data; its turns are plain
    already."""
    output = trajectory.output
    return replace(
        trajectory,
        workflow_task=_plain_task(trajectory.workflow_task),
        output=None if output is None else _plain_output(output),
        earlier_attempts=tuple(map(plain_trajectory, trajectory.earlier_attempts)),
    )


def _plain_task(workflow_task: WorkflowTask) -> WorkflowTask:
    """Reduces the task too: a workflow may have put any object into its copy of it."""
    task = workflow_task.task
    plain = replace(
        task,
        init_messages=plain_value(task.init_messages),
        metadata=plain_value(task.metadata),
    )
    return replace(workflow_task, task=plain)


def _plain_output(output: WorkflowOutput) -> WorkflowOutput:
    """Returns an output of the base class: after the judge nothing reads a user's subclass."""
    return WorkflowOutput(
        output.reward,
        output.is_success,
        plain_value(output.metadata),
        dict(output.log_metrics),
        dict(output.agent_rewards),
    )
