"""The trained model as an AgentScope chat model.

    messages (OpenAI's form) -> recorder.chat -> ChatResponse(thinking, text and tool-use blocks)

Images may be in DashScope's form, `{"image": URL}`, which its formatter writes.
With `stream=True` the response is an async generator of one chunk: the endpoint returns whole
replies. `structured_model` works as in AgentScope's OpenAI model: the class becomes the only tool,
and its validated arguments the response's `metadata` (None if they are not valid). Importing this
module imports AgentScope, which takes seconds, so tuner.py does it late.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from agentscope.message import TextBlock, ThinkingBlock, ToolUseBlock
from agentscope.model import ChatModelBase, ChatResponse
from agentscope.model._model_usage import ChatUsage
from pydantic import BaseModel

from ajet.core.images.forms import openai_part
from ajet.core.trajectory.base_recorder import SamplingOverrides
from ajet.core.workflow.bridge import run_on_loop

if TYPE_CHECKING:
    from ajet.core.trajectory.base_recorder import BaseRecorder
    from ajet.core.trajectory.turn import Turn
    from ajet.core.workflow.compaction import Conversations

STRUCTURED_TOOL = "generate_structured_output"


class AgentScopeModel(ChatModelBase):
    """The AgentScope chat model of one agent; it calls the episode's recorder."""

    def __init__(
        self,
        recorder: BaseRecorder,
        *,
        conversations: Conversations | None = None,
        agent_name: str = "default",
        target_tag: str = "default",
        stream: bool = False,
    ) -> None:
        """Makes the model of one agent, whose calls `recorder` records. If `conversations` are
        given, they compact what the agent's memory shows."""
        super().__init__(model_name="ajet", stream=stream)
        self.agent_name = agent_name
        self.target_tag = target_tag
        self._recorder = recorder
        self._conversations = conversations

    async def __call__(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | None = None,
        structured_model: type[BaseModel] | None = None,
        **sampling: Any,
    ) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        if tool_choice is not None and structured_model is None:
            self._validate_tool_choice(tool_choice, tools or [])
        if structured_model is not None:
            tools, tool_choice = [_as_tool(structured_model)], STRUCTURED_TOOL
        messages = [_with_openai_images(message) for message in messages]
        overrides = SamplingOverrides(**sampling)
        agent: dict[str, Any] = {"agent_name": self.agent_name, "target_tag": self.target_tag}
        if self._conversations is not None:
            longest = overrides.max_tokens
            messages = await self._conversations.shown(messages, tools, **agent, max_tokens=longest)
        call = self._recorder.chat(
            messages, tools, **agent, tool_choice=tool_choice, overrides=overrides
        )
        turn = await run_on_loop(self._recorder.loop, call)
        response = _response(turn, structured_model)
        return _one_chunk(response) if self.stream else response


def _with_openai_images(message: dict[str, Any]) -> dict[str, Any]:
    """Returns the message with DashScope's images, which have no type, in OpenAI's form."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [
        openai_part(part["image"])
        if isinstance(part, dict) and "type" not in part and "image" in part
        else part
        for part in content
    ]
    return {**message, "content": parts}


async def _one_chunk(response: ChatResponse) -> AsyncGenerator[ChatResponse, None]:
    yield response


def _response(turn: Turn, structured_model: type[BaseModel] | None) -> ChatResponse:
    return ChatResponse(
        content=_blocks(turn.reply),
        usage=ChatUsage(
            input_tokens=turn.num_prompt_tokens,
            output_tokens=turn.num_sampled_tokens,
            time=turn.ended_s - turn.started_s,
        ),
        metadata=_structured(turn, structured_model) if structured_model else None,
    )


def _blocks(reply: dict[str, Any]) -> list[ThinkingBlock | TextBlock | ToolUseBlock]:
    blocks: list[ThinkingBlock | TextBlock | ToolUseBlock] = []
    if reply.get("reasoning_content"):
        blocks.append(ThinkingBlock(type="thinking", thinking=reply["reasoning_content"]))
    if reply["content"]:
        blocks.append(TextBlock(type="text", text=reply["content"]))
    for call in reply.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append(
            ToolUseBlock(type="tool_use", id=call["id"], name=function["name"], input=arguments)
        )
    return blocks


def _as_tool(model: type[BaseModel]) -> dict[str, Any]:
    schema = {key: value for key, value in model.model_json_schema().items() if key != "title"}
    return {
        "type": "function",
        "function": {
            "name": STRUCTURED_TOOL,
            "description": "Give the required structured output by calling this function",
            "parameters": schema,
            "strict": True,
        },
    }


def _structured(turn: Turn, model: type[BaseModel]) -> dict[str, Any] | None:
    """Returns the first call's arguments if the class accepts them, also those of a call that was
    cut off after them."""
    calls = turn.reply.get("tool_calls")
    text = calls[0]["function"]["arguments"] if calls else turn.reply["content"]
    text = text.removeprefix(turn.notes.opening).lstrip()
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
        return model.model_validate(value).model_dump()
    except (ValueError, RecursionError):  # no JSON, or (pydantic's error) other fields
        return None
