"""Feedback on a session: a client's, the config's judge's, or from the user's next message."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.core.judge.judge import BaseJudge
from ajet.core.judge.verdict import JudgeFault, verdict
from ajet.core.task.chat_messages import shown_text
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import LARGEST_REWARD, WorkflowOutput, WorkflowTask
from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.request import Fields, RequestError
from ajet.serve.online.sessions import session_id, session_of

MAX_ID_LENGTH = 1000
NextMessage = Callable[[Sequence[Mapping[str, Any]]], float | None]
"""Returns a reward for the reply before the user's last message, or None for no opinion."""


@dataclass(frozen=True, slots=True)
class FeedbackRequest:
    """A client's feedback, as it was sent. A `reward` of None asks the judge."""

    session: str
    reward: float | None
    client: str
    feedback_id: str | None
    metadata: Mapping[str, Any]


def read_feedback(fields: Fields) -> FeedbackRequest:
    """Reads the fields of a request; raises `RequestError` for an invalid one."""
    response, session_name = fields.take("response", str), fields.take("session", str)
    if (response is None) == (session_name is None):
        raise RequestError("give one of response (its id) and session (its name)", param="session")
    session = session_of(session_name) if session_name is not None else session_id(response)
    if session is None:
        raise RequestError(
            f"response: {response[:60]!r} is not the id of a reply", param="response"
        )
    reward = fields.take("reward", (int, float, bool))
    if reward is not None and not (math.isfinite(reward) and abs(reward) <= LARGEST_REWARD):
        raise RequestError(f"reward must be a number within {LARGEST_REWARD:g}", param="reward")
    client, feedback_id = fields.take("client", str, ""), fields.take("feedback_id", str)
    if max(len(client), len(feedback_id or "")) > MAX_ID_LENGTH:
        raise RequestError(f"a name has {MAX_ID_LENGTH} characters at most", param="client")
    metadata = fields.take("metadata", dict, {})
    fields.refuse_rest()
    reward = None if reward is None else float(reward)
    return FeedbackRequest(session, reward, client, feedback_id, metadata)


async def judged(
    judge: BaseJudge | None,
    session: str,
    turn: Turn,
    metadata: Mapping[str, Any],
    timeout_s: float | None,
) -> float:
    """Returns the judge's reward for the last turn of a session; raises `JudgeFault`. The judge
    sees a task whose question is the user's last message and whose fields are the feedback's
    `metadata`; the last reply is the output's `metadata["final_answer"]`."""
    if judge is None:
        raise JudgeFault("no judge: ajet.task_judge.judge_protocol is null; give a reward")
    questions = [message for message in turn.messages if message["role"] == "user"]
    question = shown_text(questions[-1]["content"]) if questions else ""
    task = Task(session, main_query=question, metadata=dict(metadata))
    plan = WorkflowTask(task, session, f"{session}-0", 0, 0, "train", 0)
    output = WorkflowOutput(metadata={"final_answer": str(turn.reply.get("content") or "")})
    return (await verdict(judge, plan, output, timeout_s)).reward
