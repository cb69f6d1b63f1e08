"""Reduces what user code hands over to plain data (dicts, lists, texts, numbers of bounded size).

Readers of a trajectory can rely on JSON and a bounded size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ajet.core.task.chat_messages import current_form
from ajet.core.task.workflow_task import WorkflowOutput
from ajet.core.text.plain_value import (
    PlainLimits,
    plain_text,
    plain_value,
    type_name,
    uncut_plain_value,
)
from ajet.core.trajectory.trajectory import Trajectory
from ajet.core.trajectory.turn import Turn, TurnNotes

MAX_NAME_LENGTH = 200
_NO_MESSAGES = "{} of type {}; give a list of dicts, [{{'role': 'user', 'content': 'a text'}}]"
_MESSAGE_LIMITS = PlainLimits(characters=sys.maxsize)
"""The recorder refuses a prompt that is too long, with the limit that it is too long for."""


def plain_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns copies of messages or tools as plain data. Nothing is cut, because the model sees
    them: too much raises ValueError, and anything but a list of dicts TypeError."""
    if isinstance(messages, str | Mapping):
        raise TypeError(_NO_MESSAGES.format("messages is", type_name(type(messages))))
    plain = []
    for message in messages:
        try:
            copied: dict[Any, Any] = dict(message)  # objects of client libraries iterate as pairs
        except (TypeError, ValueError) as error:
            name = type_name(type(message))
            raise TypeError(_NO_MESSAGES.format("a message is", name)) from error
        content = copied.get("content")
        # Any other object would become its `repr`, which nobody wants in a prompt.
        if not isinstance(content, str | list | tuple | Mapping | None):
            name = type_name(type(content))
            raise ValueError(f"a message's content is of type {name}; give text")
        plain.append(uncut_plain_value(copied, _MESSAGE_LIMITS))
    return plain


def plain_chat(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns copies of the messages of a call, with former function calls as tool calls."""
    return current_form(plain_messages(messages))


def plain_turn(turn: Turn) -> Turn:
    """Returns the turn as plain data, when the call is recorded. Its messages and tools are plain
    since before the prompt was made."""
    return replace(
        turn,
        reply=plain_value(turn.reply),
        agent_name=plain_text(turn.agent_name, MAX_NAME_LENGTH),
        target_tag=plain_text(turn.target_tag, MAX_NAME_LENGTH),
        notes=TurnNotes.from_json(plain_value(turn.notes.as_json())),
    )


def plain_trajectory(trajectory: Trajectory) -> Trajectory:
    """Returns the trajectory of an episode that the judge has seen as plain data; its turns are
    plain already."""
    # The workflow may have put any object into its copy of the task.
    task = trajectory.workflow_task.task
    plain_task = replace(
        task,
        init_messages=plain_value(task.init_messages),
        metadata=plain_value(task.metadata),
        query_parts=plain_value(task.query_parts),
    )
    output = trajectory.output
    if output is not None:
        # An output of the base class: after the judge nothing reads a user's subclass.
        output = WorkflowOutput(
            output.reward,
            output.is_success,
            plain_value(output.metadata),
            dict(output.log_metrics),
            dict(output.agent_rewards),
        )
    return replace(
        trajectory,
        workflow_task=replace(trajectory.workflow_task, task=plain_task),
        output=output,
        earlier_attempts=tuple(map(plain_trajectory, trajectory.earlier_attempts)),
    )
