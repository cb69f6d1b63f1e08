"""`nemo_gym_agent` plays rows of NeMo Gym with the tools and the reward of a resources server.

simple      seed_session ─► model ─► calls, each a POST to the server ─► model … ─► verify
gymnasium   reset ─► model ─► step, a reward and the next observation ─► model … ─► the sum
"""

from __future__ import annotations

import json
from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.trajectory.limits import EpisodeTruncated
from ajet.core.user_code.activity import in_call
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow
from ajet.environments.nemo_gym.session import (
    GymSession,
    NemoGymSection,
    as_response,
    chat_tools,
    first_messages,
)

Message = dict[str, Any]


class NemoGymAgent(Workflow):
    name = "nemo_gym_agent"
    reads = ("rollout.multi_turn.max_assistant_turns",)

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        section = NemoGymSection.from_config(model_tuner.config)
        play = self._play_tools if section.agent == "simple" else self._play_steps
        async with GymSession.open(section, workflow_task.task.metadata) as session:
            return await play(session, workflow_task.episode_id, model_tuner)

    async def _play_tools(
        self, session: GymSession, episode_id: str, model_tuner: ModelTuner
    ) -> WorkflowOutput:
        """Plays with a server of tools, as NeMo Gym's `simple_agent`. The conversation ends after
        `multi_turn.max_assistant_turns` replies, or at a limit of tokens; the server verifies what
        there is by then."""
        limit = model_tuner.config.ajet.rollout.multi_turn.max_assistant_turns
        messages = first_messages(session.params)
        num_first, tools = len(messages), chat_tools(session.params)
        await session.seed()
        ended_by = None
        num_replies = 0
        while ended_by is None:
            try:
                reply = await model_tuner.chat(messages, tools or None)
            except EpisodeTruncated:  # the episode keeps this status
                ended_by = "truncated"
                break
            messages.append(dict(reply))
            num_replies += 1
            calls = reply.get("tool_calls") or []
            if not calls:
                ended_by = "answer"
            elif num_replies == limit:
                ended_by = "max_assistant_turns"
            else:
                messages += [await _answer(session, call) for call in calls]
        played = messages[num_first:]
        with in_call("nemo_gym verify"):
            verdict = await session.verify(as_response(episode_id, session.params, played))
        return WorkflowOutput(
            reward=verdict.reward,
            is_success=verdict.reward >= 1,
            metadata={"final_answer": _last_text(played), "ended_by": ended_by},
            log_metrics={
                **{f"nemo_gym/{name}": value for name, value in verdict.metrics.items()},
                "assistant_turns": float(num_replies),
            },
        )

    async def _play_steps(
        self, session: GymSession, episode_id: str, model_tuner: ModelTuner
    ) -> WorkflowOutput:
        """Plays with a server that steps, as NeMo Gym's `gymnasium_agent`. The reward is the sum of
        the steps' rewards."""
        limit = model_tuner.config.ajet.rollout.multi_turn.max_assistant_turns
        messages, tools = first_messages(session.params), chat_tools(session.params)
        step = await session.reset()
        ended_by = None
        reward, num_replies = 0.0, 0
        while ended_by is None:
            messages += [
                {"role": "tool", "tool_call_id": answer.call_id, "content": answer.output}
                for answer in step.info.tool_outputs
            ]
            if step.observation:
                messages.append({"role": "user", "content": step.observation})
            try:
                reply = dict(await model_tuner.chat(messages, tools or None))
            except EpisodeTruncated:  # the episode keeps this status
                ended_by = "truncated"
                break
            messages.append(reply)
            num_replies += 1
            with in_call("nemo_gym step"):
                step = await session.step(as_response(episode_id, session.params, [reply]))
            reward += step.reward
            if step.terminated or step.truncated:
                ended_by = "terminated" if step.terminated else "step_limit"
            elif num_replies == limit:
                ended_by = "max_assistant_turns"
        return WorkflowOutput(
            reward=reward,
            is_success=reward >= 1,
            metadata={"final_answer": _last_text(messages), "ended_by": ended_by},
            log_metrics={"assistant_turns": float(num_replies)},
        )

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        NemoGymSection.from_config(config)


async def _answer(session: GymSession, call: Message) -> Message:
    """Runs a call; arguments that are not a JSON object are answered with an error."""
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        with in_call(f"tool {function['name']}"):
            text = await session.call(function["name"], arguments)
    else:
        text = "Error: the arguments are no JSON object"
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _last_text(messages: list[Message]) -> str:
    replies = [message for message in messages if message["role"] == "assistant"]
    return str(replies[-1].get("content") or "") if replies else ""
