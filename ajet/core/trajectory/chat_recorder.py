"""Records an episode whose endpoint takes chat messages and does not show token ids.

The completion of a turn is empty, and the token counts that the endpoint reports are in its notes.
Such turns cannot be trained. Limits of prompts are the endpoint's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.inference.chat_template import ChatTemplate, normalised
from ajet.core.inference.endpoint import ChatCompletion, ChatEndpoint, Completion
from ajet.core.task.chat_messages import parsed_arguments
from ajet.core.trajectory.base_recorder import BaseRecorder, SamplingOverrides
from ajet.core.trajectory.plain_trajectory import plain_chat, plain_messages
from ajet.core.trajectory.turn import Turn, TurnNotes


class ChatRecorder(BaseRecorder):
    """Records one episode with a `ChatEndpoint` as its model."""

    def __init__(self, endpoint: ChatEndpoint, **episode: Any) -> None:
        super().__init__(**episode)
        self._endpoint = endpoint

    async def chat(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None = None,
        *,
        agent_name: str = "default",
        target_tag: str = "default",
        tool_choice: str | None = None,
        parallel_tool_calls: bool = True,
        overrides: SamplingOverrides | None = None,
        is_summary: bool = False,
    ) -> Turn:
        index = await self._start_call()
        sent = [_openai_form(message) for message in plain_chat(messages)]
        offered = None
        if tools and not self.limits.force_disable_toolcalls:
            offered = plain_messages(tools)
        started_s = self._clock()
        overrides = overrides or SamplingOverrides()
        most = self.limits.max_response_length_in_one_turn
        changed = overrides.settings | {
            "max_tokens": min(most, overrides.max_tokens or most),
            "seed": self._seed(index, overrides),
        }
        sampling = replace(self.sampling, **changed)
        choice = tool_choice if offered else None  # APIs refuse a choice without tools
        form = {"response_format": overrides.response_format} if overrides.response_format else {}
        self._report_call(sent, offered)
        with self._calling_endpoint():
            answer = await self._endpoint.chat(
                sent,
                offered,
                sampling,
                choice,
                overrides.chat_template_kwargs,
                **form,
            )
        self.check_open()
        reply, malformed = _checked_reply(index, answer)
        if not parallel_tool_calls and "tool_calls" in reply:
            reply["tool_calls"] = reply["tool_calls"][:1]
        turn = Turn(
            completion=Completion((), (), (), answer.finish_reason, 0),
            messages=sent,
            tools=offered,
            reply=reply,
            agent_name=agent_name,
            target_tag=target_tag,
            trainable=False,
            started_s=started_s,
            ended_s=self._clock(),
            notes=TurnNotes(
                prompt_tokens=answer.num_prompt_tokens,
                sampled_tokens=answer.num_sampled_tokens,
                malformed_calls=malformed,
                is_summary=is_summary,
            ),
        )
        return self._record_turn(index, turn)

    async def give(self, *_arguments: Any, **_options: Any) -> Turn:
        raise ConfigError(
            "model_tuner.give() writes token ids, which a chat endpoint does not show; it is for "
            "training",
            code=Code.NO_TOKEN_IDS,
        )

    async def generate(self, prompt_ids: Sequence[int], **_options: Any) -> Turn:
        raise ConfigError(
            "model_tuner.generate() takes token ids, which a chat endpoint does not show; "
            "use model_tuner.chat() or an agent framework",
            code=Code.NO_TOKEN_IDS,
        )

    def num_prompt_tokens(self, messages: Sequence[dict[str, Any]], tools: Any = None) -> int:
        raise ConfigError(
            "ajet.rollout.compaction counts the tokens of prompts, which a chat endpoint does not "
            "show: write ajet.rollout.compaction.enable=false",
            code=Code.NO_TOKEN_IDS,
        )

    @property
    def template(self) -> ChatTemplate:
        raise ConfigError(
            "model_tuner: a chat endpoint shows no token ids; only text can be used",
            code=Code.NO_TOKEN_IDS,
        )

    @property
    def shows_tools(self) -> bool:
        return True


def _openai_form(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message as an API takes it: text as one string, arguments as JSON text."""
    form = normalised(message)
    form.pop("malformed_tool_calls", None)  # `model_tuner.chat` adds it to a reply
    for call in form.get("tool_calls", ()):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return form


def _checked_reply(index: int, answer: ChatCompletion) -> tuple[dict[str, Any], list[str]]:
    """Returns the reply for the agent, and its malformed calls, whose arguments are not a JSON
    object. They become text in the reply."""
    reply = {**answer.message, "role": "assistant", "content": answer.message.get("content") or ""}
    calls, malformed = [], []
    for order, call in enumerate(reply.pop("tool_calls", None) or ()):
        arguments = call["function"].get("arguments")
        if isinstance(parsed := parsed_arguments(arguments), dict):
            # Arguments that the server wrote keep their spelling; others become JSON text.
            is_written = isinstance(arguments, str) and parsed
            call["function"]["arguments"] = arguments if is_written else json.dumps(parsed)
            calls.append({**call, "id": call.get("id") or f"call_{index:04d}_{order}"})
        else:
            malformed.append(json.dumps(call["function"], ensure_ascii=False))
    if malformed:
        reply["content"] = "\n".join(filter(None, [reply["content"], *malformed]))
    if calls:
        reply["tool_calls"] = calls
    return reply, malformed
