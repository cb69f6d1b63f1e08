"""Parses replies of gpt-oss ("harmony"): messages in channels, after `<|start|>assistant`.

<|channel|>analysis<|message|>I need 2+3.<|end|><|start|>assistant<|channel|>commentary
    to=functions.add <|constrain|>json<|message|>{"a": 2, "b": 3}<|call|>
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import Call, read_arguments, skip_space, with_ids

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_CONSTRAIN, _END, _CALL, _RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_ENDS = re.compile(r"<\|end\|>|<\|call\|>|<\|return\|>|(?=<\|start\|>)")
_TYPE = r"(?:(?:<\|constrain\|>\s*)?\w+)?"
# The recipient stands before or after the channel. Possessive quantifiers (`*+`) keep a long run of
# spaces in a malformed header from taking quadratic time.
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?\s*+(?:to=(?P<before>[^\s<]+))?\s*+"
    rf"(?:<\|channel\|>\s*+(?P<channel>\w++)\s*+(?:to=(?P<after>[^\s<]+))?\s*+{_TYPE})?\s*+"
)


@dataclass(slots=True)
class _Parts:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)


class GptOssParser:
    special_tokens = (_START, _CHANNEL, _MESSAGE, _CONSTRAIN, _END, _CALL, _RETURN)
    argument_frame = None  # a call ends with its own stop token

    @classmethod
    def from_template(cls, template: str) -> GptOssParser:
        return cls()

    def parse(
        self, text: str, tools: Tools | None = None, prompt_end: str | None = None
    ) -> ParsedReply:
        reply = _Parts()
        position = 0
        while end := _ENDS.search(text, _search_start(text, position)):
            _add_message(reply, text[position : end.start()], end.group())
            position = end.end()
        _add_message(reply, text[position:], "")
        return ParsedReply(
            content="\n".join(reply.content),
            tool_calls=with_ids(reply.calls),
            reasoning="\n".join(reply.reasoning) if reply.reasoning else None,
            malformed=tuple(reply.malformed),
        )

    def opening(self, name: str | None) -> str:
        # It ends at a token boundary: tokenizers join the dot with the name after it.
        header = f"{_CHANNEL}commentary to=functions"
        return header if name is None else f"{header}.{name} {_CONSTRAIN}json{_MESSAGE}"


def _add_message(reply: _Parts, message: str, end: str) -> None:
    """Adds one message, which `end` closes, to the part of the reply that it belongs to:

        analysis, closed                       reasoning
        final, or commentary to nobody         content (also if the reply was cut within it)
        to functions.NAME, closed by <|call|>  a call, if it is one JSON object or nothing
        anything else                          content, unchanged; malformed, except cut analysis

    Calls of the model's built-in tools (browser, python), which no schema offers, are malformed."""
    header_text, has_body, body = message.partition(_MESSAGE)
    header = _HEADER.fullmatch(header_text) if has_body else None
    recipient = header and (header["before"] or header["after"])
    # A message to a recipient is a call or malformed, whatever its channel.
    name = header["channel"] if header and not recipient else ""
    call = _call(recipient, body) if recipient and end == _CALL else None
    if call:
        reply.calls.append(call)
    elif name in ("final", "commentary") and end != _CALL:
        reply.content += [body] if body else []
    elif name == "analysis" and end == _END:
        reply.reasoning.append(body.strip("\n"))
    elif text := (message + end).removesuffix(_RETURN):
        reply.content.append(text)
        is_cut = name == "analysis" and not end
        if not is_cut and any(token in text for token in GptOssParser.special_tokens):
            reply.malformed.append(text)


def _search_start(text: str, start: int) -> int:
    """Returns where to search for the end of the message at `start`: after the token that begins
    it, and after a call's arguments, which may spell the tokens that end a message."""
    body = text.find(_MESSAGE, start)
    header = _HEADER.fullmatch(text, start, body) if body >= 0 else None
    if header and (header["before"] or header["after"]):
        arguments = read_arguments(text, body + len(_MESSAGE))
        return arguments[1] if arguments else body
    return start + len(_START) if text.startswith(_START, start) else start


def _call(recipient: str, body: str) -> Call | None:
    namespace, _, name = recipient.partition(".")
    arguments = read_arguments(body, 0)
    if namespace != "functions" or not name or not arguments:
        return None
    if skip_space(body, arguments[1]) < len(body):
        return None
    return Call(name, arguments[0])
