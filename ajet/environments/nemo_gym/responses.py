"""Translates between the items of OpenAI's Responses API, which NeMo Gym speaks, and chat messages.

Images, files, custom tools and reasoning items are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ajet.core.errors import EnvironmentFault

Message = dict[str, Any]
TEXT_PARTS = ("input_text", "output_text", "text")


def first_messages(params: Mapping[str, Any]) -> list[Message]:
    """Returns the chat messages of a request. Raises EnvironmentFault for items that are not
    messages or calls of functions."""
    instructions, items = params.get("instructions"), params.get("input")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not isinstance(items, list):
        raise EnvironmentFault("nemo_gym: responses_create_params has no input")
    return messages + [_message(item) for item in items]


def chat_tools(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = []
    for tool in params.get("tools") or ():
        if not (isinstance(tool, dict) and isinstance(tool.get("name"), str)):
            raise EnvironmentFault("nemo_gym: responses_create_params.tools: a tool has no name")
        function = {
            "name": tool["name"],
            "description": tool.get("description") or "",
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
        }
        tools.append({"type": "function", "function": function})
    return tools


def as_response(
    episode_id: str, params: Mapping[str, Any], messages: Sequence[Message]
) -> dict[str, Any]:
    """Returns the episode as the response object that `/verify` takes. `messages` are those after
    the request's."""
    output: list[dict[str, Any]] = []
    for message in messages:
        number = len(output)
        if message["role"] == "tool":
            answer = {"call_id": message["tool_call_id"], "output": message["content"]}
            output.append({"type": "function_call_output", **answer})
            continue
        if message.get("content"):
            text = {"type": "output_text", "text": message["content"], "annotations": []}
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{episode_id}_{number}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [text],
                }
            )
        output += [
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
            for call in message.get("tool_calls") or ()
        ]
    return {
        "id": f"resp_{episode_id}",
        "object": "response",
        "created_at": 0,
        "model": "ajet",
        "status": "completed",
        "output": output,
        "tools": params.get("tools") or [],
        "tool_choice": params.get("tool_choice") or "auto",
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
    }


def _message(item: Any) -> Message:
    item_type = item.get("type", "message") if isinstance(item, dict) else None
    if item_type == "message" and isinstance(item.get("role"), str):
        role = "system" if item["role"] == "developer" else item["role"]
        return {"role": role, "content": _text(item.get("content"))}
    if item_type == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if item_type == "function_call_output":
        content = _text(item.get("output"))
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    raise EnvironmentFault(f"nemo_gym: an input item of type {item_type!r} is not text")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    text_blocks = [p for p in blocks if isinstance(p, dict) and p.get("type") in TEXT_PARTS]
    texts = [part["text"] for part in text_blocks if isinstance(part.get("text"), str)]
    if len(texts) != len(blocks):
        raise EnvironmentFault("nemo_gym: the content of an input item is not text alone")
    return "\n".join(texts)
