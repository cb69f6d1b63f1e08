"""Assistant messages in OpenAI's form, as an agent gets a reply.

    ParsedReply(content, reasoning, tool_calls)  ->  {"role": "assistant", "content": …,
                                                      "reasoning_content": …, "tool_calls": […]}

Call ids are ``call_<turn>_<order>``, so they are the same in a run that is resumed or replayed.
"""

from __future__ import annotations

import json
from typing import Any

from ajet.core.inference.tool_parser import ParsedReply, ToolCall


def assistant_message(parsed: ParsedReply, turn: int, *, parallel: bool = True) -> dict[str, Any]:
    """Returns the message; without `parallel` it has only the first tool call."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    calls = parsed.tool_calls if parallel else parsed.tool_calls[:1]
    if calls:
        message["tool_calls"] = [
            _tool_call(call, f"call_{turn:04d}_{order}") for order, call in enumerate(calls)
        ]
    return message


def _tool_call(call: ToolCall, call_id: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}
