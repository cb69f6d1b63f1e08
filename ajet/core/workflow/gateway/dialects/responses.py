"""OpenAI's Responses API: ``POST /v1/responses``.

The items of one reply are merged into one message again, so that the conversation continues with
the recorded tokens. `previous_response_id` works for the same key until the episode ends. Built-in
tools (web search, …) and the fields in `UNSERVED` are refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ajet.core.trajectory.turn import Turn
from ajet.core.workflow.gateway.dialects.chat_completions import (
    NOT_MODERATED,
    SAMPLED_ALONE,
    finish_reason,
    read_messages,
    read_tool_choice,
)
from ajet.core.workflow.gateway.dialects.chat_completions import UNSERVED as UNSERVED_IN_CHAT
from ajet.core.workflow.gateway.dialects.dialect import content_of, event, openai_error
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
    "access_programs",
    "client_metadata",
    "max_tool_calls",  # counts calls of built-in tools alone, and there are none
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "stream_options",
    "user",
)
# No summary is written: the reasoning itself is in the reply, where the template shows it.
_SUMMARIES = [{"summary": form} for form in ("auto", "concise", "detailed", "none")]
_AT_ONCE = "the answer comes at once; leave it out"
UNSERVED = {
    "background": Unserved(_AT_ONCE, [False]),
    "background_options": Unserved(_AT_ONCE, [{}]),
    "context_management": Unserved("the agent shortens its history; leave it out", [[]]),
    "conversation": Unserved("ajet stores none; send input, or previous_response_id"),
    "image": Unserved("a processor of the model prepares images; leave it out", [{}]),
    "include": Unserved(
        "nothing more is known of a reply; leave it out", [[], ["reasoning.encrypted_content"]]
    ),
    "moderation": Unserved(NOT_MODERATED),
    "prompt": Unserved("ajet stores no prompts; send input and instructions"),
    "reasoning": Unserved(
        "the chat template decides how the model thinks; leave it out", [{}, *_SUMMARIES]
    ),
    "text.verbosity": UNSERVED_IN_CHAT["verbosity"],
    "top_logprobs": Unserved(SAMPLED_ALONE, [0]),
    "truncation": Unserved("the agent shortens its history; leave it out", ["disabled"]),
}
"""The fields of the API that are known and refused."""
_TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "refusal")


class Responses:
    """Translates OpenAI's Responses API."""

    path = "/responses"

    def parse(self, body: Mapping[str, Any], grant: Grant) -> ChatRequest:
        fields = Fields(body, IGNORED_FIELDS)
        tools, namespaces = _tools(object_list(fields.take("tools", list, []), "tools"))
        text = fields.take("text", dict, {})
        text_fields = Fields({f"text.{name}": text[name] for name in text})
        form = text_fields.take("text.format", dict)
        text_fields.refuse_rest(UNSERVED)
        earlier_messages = _stored_conversation(fields.take("previous_response_id", str), grant)
        instructions = fields.take("instructions", str)
        input_messages = _messages(fields.take("input", (str, list), []))
        instruction_messages = [{"role": "system", "content": instructions}] if instructions else []
        request = ChatRequest(
            messages=read_messages([*instruction_messages, *earlier_messages, *input_messages]),
            has_instructions=bool(instruction_messages),
            tools=tools or None,
            namespaces=namespaces,
            tool_choice=read_tool_choice(fields.take("tool_choice", (str, dict)), tools),
            parallel_tool_calls=fields.take("parallel_tool_calls", bool, True),
            overrides=overrides(
                temperature=fields.take("temperature", (int, float)),
                top_p=fields.take("top_p", (int, float)),
                max_tokens=fields.take("max_output_tokens", int),
                # Chat Completions nests the schema one level deeper.
                response_format=form and {**form, "json_schema": form},
            ),
            stream=fields.take("stream", bool, False),
            model=fields.take("model", str, "ajet"),
        )
        fields.refuse_rest(UNSERVED)
        return request

    def reply(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> dict[str, Any]:
        turn = turns[0]
        identifier = grant.response_id("resp_")
        # Instructions are for one request only, so `previous_response_id` does not bring them back.
        grant.stored_conversations[identifier] = [
            *request.messages[request.has_instructions :],
            turn.reply,
        ]
        is_cut = finish_reason(turn) == "length"
        return {
            "id": identifier,
            "object": "response",
            "created_at": int(time.time()),
            "model": request.model,
            "error": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": request.parallel_tool_calls,
            "temperature": request.overrides.temperature,
            "top_p": request.overrides.top_p,
            "tool_choice": request.tool_choice or "auto",
            "tools": [{"type": "function", **tool["function"]} for tool in request.tools or ()],
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": _output_items(identifier, turn.reply, request.namespaces),
            "usage": {
                "input_tokens": turn.num_prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": turn.num_sampled_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": turn.num_prompt_tokens + turn.num_sampled_tokens,
            },
        }

    def events(self, request: ChatRequest, turns: Sequence[Turn], grant: Grant) -> Iterator[str]:
        response = self.reply(request, turns, grant)
        started = {**response, "status": "in_progress", "output": [], "usage": None}
        events = [("response.created", {"response": started})]
        events.append(("response.in_progress", {"response": started}))
        for index, item in enumerate(response["output"]):
            events += _item_events(index, item)
        events.append((f"response.{response['status']}", {"response": response}))
        for number, (event_type, data) in enumerate(events):
            yield event({"type": event_type, "sequence_number": number, **data}, event_type)

    def error_body(self, error: RequestError) -> dict[str, Any]:
        return openai_error(error)


def _tools(
    raw_tools: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns all tools in Chat Completions' form, and the namespaces of those in one by their
    names, which must be unique."""
    tools: list[dict[str, Any]] = []
    namespaces: dict[str, str] = {}
    for raw in raw_tools:
        if raw.get("type") != "namespace":
            tools.append(_tool(raw))
            continue
        for inner in object_list(raw.get("tools") or [], "tools"):
            tools.append(_tool(inner))
            namespaces[str(inner.get("name"))] = str(raw.get("name"))
    names = [tool["function"].get("name") for tool in tools]
    for name in namespaces:
        if names.count(name) > 1:
            raise RequestError(f"tools: {name!r} is there twice, in a namespace", param="tools")
    return tools, namespaces


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tool in Chat Completions' form, which nests the function one level deeper."""
    if tool.get("type") != "function":
        raise RequestError(
            f"tools: only functions are served, not {tool.get('type')!r}", param="tools"
        )
    names = ("name", "description", "parameters", "strict")
    function = {key: tool[key] for key in names if tool.get(key)}
    return {"type": "function", "function": function}


def _stored_conversation(identifier: str | None, grant: Grant) -> list[dict[str, Any]]:
    if identifier is None:
        return []
    if identifier not in grant.stored_conversations:
        raise RequestError(
            f"no response {identifier} was given to this key",
            status=404,
            param="previous_response_id",
        )
    return grant.stored_conversations[identifier]


def _messages(content: str | list[Any]) -> list[dict[str, Any]]:
    """Returns messages in Chat Completions' form, with the items of one reply merged into one."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    messages: list[dict[str, Any]] = []
    for item in object_list(content, "input"):
        message = _message(item)
        last = messages[-1] if messages else {}
        if not (message["role"] == "assistant" == last.get("role")):
            messages.append(message)
            continue
        for name in ("content", "reasoning_content"):
            if message.get(name):
                last[name] = (last.get(name) or "") + message[name]
        if message.get("tool_calls"):
            last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
    return messages


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    match item.get("type", "message"):
        case "message":
            content, role = item.get("content"), item.get("role")
            shown = _text(content) if role == "assistant" else content_of(content, _text)
            return {"role": role, "content": shown}
        case "reasoning":
            return {"role": "assistant", "reasoning_content": _text(item.get("content") or [])}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "tool_calls": [call]}
        case "function_call_output":
            output = content_of(item.get("output"), _text)
            return {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        case kind:
            raise RequestError(f"input: items of type {kind!r} are not served", param="input")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = object_list(content, "input")
    for part in blocks:
        if part.get("type") not in _TEXT_PARTS:
            raise RequestError(
                f"input: {part.get('type')!r} is not served: text, and images of users and tools",
                param="input",
            )
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in blocks)


def _output_items(
    identifier: str, reply: Mapping[str, Any], namespaces: Mapping[str, str]
) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if reply.get("reasoning_content"):
        text = {"type": "reasoning_text", "text": reply["reasoning_content"]}
        items.append({"type": "reasoning", "summary": [], "content": [text]})
    if reply["content"] or not reply.get("tool_calls"):
        text = {"type": "output_text", "text": reply["content"], "annotations": [], "logprobs": []}
        items.append({"type": "message", "role": "assistant", "content": [text]})
    for call in reply.get("tool_calls", ()):
        item = {"type": "function_call", "call_id": call["id"], **call["function"]}
        namespace = namespaces.get(call["function"]["name"])
        items.append(item | ({"namespace": namespace} if namespace else {}))
    return [
        {"id": f"{identifier}-{index}", "status": "completed", **item}
        for index, item in enumerate(items)
    ]


def _item_events(index: int, item: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Returns the events of one item, as (type, data)."""
    location = {"output_index": index, "item_id": item["id"]}
    empty = {**item, "status": "in_progress"}
    if item["type"] == "function_call":
        empty["arguments"] = ""
        arguments = {"arguments": item["arguments"], "name": item["name"]}
        events = [
            ("function_call_arguments.delta", {**location, "delta": item["arguments"]}),
            ("function_call_arguments.done", {**location, **arguments}),
        ]
    else:
        empty["content"] = []
        events = _text_events(location, item)
    started = ("output_item.added", {"output_index": index, "item": empty})
    done = ("output_item.done", {"output_index": index, "item": item})
    return [(f"response.{event_type}", data) for event_type, data in (started, *events, done)]


def _text_events(
    location: dict[str, Any], item: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    part = item["content"][0]
    position = {**location, "content_index": 0}
    if part["type"] == "reasoning_text":
        return [
            ("reasoning_text.delta", {**position, "delta": part["text"]}),
            ("reasoning_text.done", {**position, "text": part["text"]}),
        ]
    return [
        ("content_part.added", {**position, "part": {**part, "text": ""}}),
        ("output_text.delta", {**position, "delta": part["text"], "logprobs": []}),
        ("output_text.done", {**position, "text": part["text"], "logprobs": []}),
        ("content_part.done", {**position, "part": part}),
    ]
