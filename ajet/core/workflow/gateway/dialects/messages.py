"""Anthropic's Messages API: ``POST /v1/messages``.

The signature of a thinking block is empty, and is not checked. Documents, the provider's tools, the
fields in `UNSERVED`, and a last message of the assistant are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.dialects.chat_completions import read_stop, read_tool_choice
from ajet.core.workflow.gateway.dialects.dialect import content_of, event
from ajet.core.workflow.gateway.keys import Grant
from ajet.core.workflow.gateway.request import (
    ChatRequest,
    Fields,
    RequestError,
    Unserved,
    object_list,
    overrides,
)

IGNORED_FIELDS = (
    "cache_control",
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "metadata",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
IGNORED_OUTPUT_CONFIG = {"effort"}
UNSERVED = {
    "thinking": Unserved(
        "the chat template decides how the model thinks; leave it out", [{"type": "disabled"}]
    ),
    "thread": Unserved("send the whole conversation: thread=False", [False]),
}
"""The fields of the API that are known and refused."""
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Messages:
    """Translates Anthropic's Messages API."""

    path = "/messages"

    def parse(self, body: Mapping[str, Any], grant: Grant) -> ChatRequest:
        fields = Fields(body, IGNORED_FIELDS)
        tools = [_tool(tool) for tool in object_list(fields.take("tools", list, []), "tools")]
        choice = fields.take("tool_choice", dict, {})
        system = _text(fields.take("system", (str, list), ""), "system")
        raw_messages = object_list(fields.take("messages", list, []), "messages")
        output_config = fields.take("output_config", dict, {})
        form = output_config.get("format") or fields.take("output_format", dict)
        if unknown := output_config.keys() - IGNORED_OUTPUT_CONFIG - {"format"}:
            raise RequestError(
                f"output_config.{min(unknown)} is not served; leave it out",
                param="output_config",
                code="unsupported_parameter",
            )
        messages = [message for raw in raw_messages for message in _messages(raw)]
        if not messages or messages[-1]["role"] == "assistant":
            raise RequestError("messages must not end with the assistant's", param="messages")
        head = [{"role": "system", "content": system}] if system else []
        request = ChatRequest(
            messages=[*head, *messages],
            tools=tools or None,
            tool_choice=_tool_choice(choice, tools),
            parallel_tool_calls=not choice.get("disable_parallel_tool_use"),
            overrides=overrides(
                temperature=fields.take("temperature", (int, float)),
                top_p=fields.take("top_p", (int, float)),
                top_k=fields.take("top_k", int),
                max_tokens=fields.take("max_tokens", int),
                stop=read_stop(fields.take("stop_sequences", list), "stop_sequences"),
                response_format=form and {**form, "json_schema": form},
            ),
            stream=fields.take("stream", bool, False),
            model=fields.take("model", str, "ajet"),
        )
        fields.refuse_rest(UNSERVED)
        return request

    def reply(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> dict[str, Any]:
        turn = turns[0]
        reason, stop = _stop_reason(turn)
        return {
            "id": grant.response_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": _blocks(turn.reply),
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": {
                "input_tokens": turn.num_prompt_tokens,
                "output_tokens": turn.num_sampled_tokens,
            },
        }

    def events(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> Iterator[str]:
        message = self.reply(request, turns, grant)
        ended = {key: message[key] for key in ("stop_reason", "stop_sequence")}
        started = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message=started)
        for index, block in enumerate(message["content"]):
            empty, delta = _start_and_delta(block)
            yield _event("content_block_start", index=index, content_block=empty)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=ended, usage=message["usage"])
        yield _event("message_stop")

    def error_body(self, error: RequestError) -> dict[str, Any]:
        error_type = _ERROR_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": error_type, "message": str(error)}}


def _event(event_type: str, **data: Any) -> str:
    return event({"type": event_type, **data}, event_type)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tool in Chat Completions' form."""
    if tool.get("type", "custom") != "custom":
        raise RequestError(f"tools: {tool['type']!r} is the provider's own", param="tools")
    function = {key: tool[key] for key in ("name", "description", "strict") if tool.get(key)}
    function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> str | None:
    choice_type = choice.get("type")
    if choice_type == "tool":
        return read_tool_choice({"name": choice.get("name")}, tools)
    if choice_type is not None and str(choice_type) not in _TOOL_CHOICES:
        raise RequestError(f"tool_choice: unknown type {choice_type!r}", param="tool_choice")
    return read_tool_choice(_TOOL_CHOICES.get(str(choice_type)), tools)


def _messages(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Converts one message of blocks to messages of Chat Completions; tool results come first."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise RequestError(f"messages: unknown role {role!r}", param="messages")
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    blocks = object_list(content, "messages")
    if role == "system":  # instructions that begin in the middle of a conversation
        return [{"role": role, "content": _text(blocks)}]
    if role == "assistant":
        return [_assistant(blocks)]
    # Chat Completions has each result as a message, and they must follow the calls directly.
    results = [_result(block) for block in blocks if block.get("type") == "tool_result"]
    other_blocks = [block for block in blocks if block.get("type") != "tool_result"]
    return results + (
        [{"role": "user", "content": content_of(other_blocks, _text)}] if other_blocks else []
    )


def _assistant(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    thinking = [str(b.get("thinking") or "") for b in blocks if b.get("type") == "thinking"]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    other_blocks = [block for block in blocks if block.get("type") not in ("thinking", "tool_use")]
    message: dict[str, Any] = {"role": "assistant", "content": _text(other_blocks)}
    if any(thinking):
        message["reasoning_content"] = "".join(thinking)
    return message | ({"tool_calls": calls} if calls else {})


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": block.get("name"), "arguments": arguments}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(block: Mapping[str, Any]) -> dict[str, Any]:
    content = content_of(block.get("content") or "", _text)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}


def _text(content: Any, name: str = "messages") -> str:
    if isinstance(content, str):
        return content
    blocks = object_list(content, name)
    for block in blocks:
        if block.get("type") != "text":
            raise RequestError(
                f"{name}: {block.get('type')!r} is not served: text, and images of users and tools",
                param=name,
            )
    return "".join(str(block.get("text") or "") for block in blocks)


def _stop_reason(turn: Turn) -> tuple[str, str | None]:
    if turn.is_cut:
        return "max_tokens", None
    if turn.reply.get("tool_calls"):
        return "tool_use", None
    stop = turn.notes.stopped_at
    return ("stop_sequence", stop) if stop else ("end_turn", None)


def _blocks(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.get("reasoning_content"):
        thinking = reply["reasoning_content"]
        blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
    if reply["content"]:
        blocks.append({"type": "text", "text": reply["content"]})
    for call in reply.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        blocks.append(
            {"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments}
        )
    return blocks


def _start_and_delta(block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the empty block that begins a stream, and the whole content as one delta."""
    if block["type"] == "tool_use":
        partial = json.dumps(block["input"], ensure_ascii=False)
        return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": partial}
    if block["type"] == "thinking":
        delta = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": ""}, delta
    return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
