"""What an agent is told of a reply: an assistant message in OpenAI's form.

    ParsedReply(content, reasoning, tool_calls)  ->  {"role": "assistant", "content": …,
                                                      "reasoning_content": …, "tool_calls": […]}

Call ids are ``call_<turn>_<order>``: the same in a run that is resumed or replayed.
"""

from __future__ import annotations

import json
from typing import Any

from ajet.core.inference.tool_parser import ParsedReply, ToolCall


def assistant_message(parsed: ParsedReply, turn: int, *, parallel: bool = True) -> dict[str, Any]:
    """The message; without `parallel` it has the first call alone."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    calls = parsed.tool_calls if parallel else parsed.tool_calls[:1]
    if calls:
        message["tool_calls"] = [
            _tool_call(call, f"call_{turn:04d}_{order}") for order, call in enumerate(calls)
        ]
    return message


def _tool_call(call: ToolCall, identity: str) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": identity, "type": "function", "function": function}
