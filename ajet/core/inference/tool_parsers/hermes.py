"""Tool calls as Hermes and Qwen write them, and thinking before the answer.

    <think>I need 2+3.</think>
    Let me compute.
    <tool_call>
    {"name": "add", "arguments": {"a": 2, "b": 3}}
    </tool_call>

gives reasoning "I need 2+3.", content "Let me compute." and one call. A call counts when it is
closed and holds one JSON object with a name and, as `arguments`, an object (or a name and nothing
else). Any other stays in the content as it was written.
"""

import json
from typing import Any

from ajet.core.inference.tool_parsers.parser import ParsedReply, ToolCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_DECODER = json.JSONDecoder()


class HermesParser:
    """See the module's docstring. `splits_thinking=False` leaves thinking in the content."""

    def __init__(self, splits_thinking: bool = True) -> None:
        self._splits_thinking = splits_thinking

    def parse(self, text: str) -> ParsedReply:
        reasoning, rest = _split_thinking(text) if self._splits_thinking else (None, text)
        pieces: list[str] = []
        calls: list[ToolCall] = []
        malformed: list[str] = []
        position = 0
        while (start := rest.find(_OPEN, position)) >= 0:
            pieces.append(rest[position:start])
            call, position = _read_call(rest, start, f"call_{len(calls)}")
            if call:
                calls.append(call)
            else:
                malformed.append(rest[start:position])
                pieces.append(rest[start:position])
        content = "".join(pieces) + rest[position:]
        return ParsedReply(
            content=content.strip() if calls else content,
            tool_calls=tuple(calls),
            reasoning=reasoning,
            malformed=tuple(malformed),
        )

    def opening(self, name: str | None) -> str:
        if name is None:
            return _OPEN
        # It ends where a token does: tokenizers write the space before an object with its brace.
        return f'{_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments":'


def _split_thinking(text: str) -> tuple[str | None, str]:
    """Thinking and the rest. The opening tag may be missing: some templates write it themselves."""
    head, closed, tail = text.partition("</think>")
    if not closed:
        return None, text
    before, opened, thinking = head.partition("<think>")
    if not opened:
        before, thinking = "", head
    return thinking.strip("\n"), before + tail.lstrip("\n")


def _read_call(text: str, start: int, call_id: str) -> tuple[ToolCall | None, int]:
    """The call whose opening tag stands at `start` (None: malformed), and where it ends."""
    body = start + len(_OPEN)
    while body < len(text) and text[body].isspace():
        body += 1
    try:
        value, end = _DECODER.raw_decode(text, body)
    except (ValueError, RecursionError):
        return None, _malformed_end(text, start)
    after = len(text) - len(text[end:].lstrip())
    if not text.startswith(_CLOSE, after) or not _is_call(value):
        return None, _malformed_end(text, start)
    arguments = value.get("arguments", {})
    return ToolCall(call_id, value["name"], arguments), after + len(_CLOSE)


def _malformed_end(text: str, start: int) -> int:
    """A malformed call reaches to its closing tag, the next opening tag, or the end of the text."""
    body = start + len(_OPEN)
    stop = text.find(_OPEN, body)
    close = text.find(_CLOSE, body, stop if stop >= 0 else len(text))
    if close >= 0:
        return close + len(_CLOSE)
    return stop if stop >= 0 else len(text)


def _is_call(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and bool(value["name"])
        and (isinstance(value.get("arguments"), dict) or set(value) == {"name"})
    )
