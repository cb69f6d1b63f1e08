"""Writes the grammar of a reply: of its form, and of calls of strict tools.

Calls have a grammar in the families that write arguments as JSON (`ToolParser.argument_frame`).
Tools that are not strict take any object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ajet.core.inference.grammar import format_rule, json_rule, reply_grammar

if TYPE_CHECKING:
    from ajet.core.inference.chat_template import ChatTemplate
    from ajet.core.inference.tool_parser import ToolParser

Function = Mapping[str, Any]
NOT_ENFORCED = (
    "tools are strict, but no grammar of this model family's tool calls is known: their arguments "
    "are sampled freely"
)
_TEXT, _TEXT_BUT_BRACE = r"/(.|\n)*/", r"/([^{](.|\n)*)?/"


class ReplyGrammars:
    """Writes the grammars of one model's replies."""

    def __init__(self, template: ChatTemplate, parser: ToolParser) -> None:
        self._template = template
        self._parser = parser

    def grammar(
        self,
        prompt_ids: Sequence[int],
        response_format: Mapping[str, Any] | None,
        functions: Sequence[Function] = (),
        opening: str = "",
    ) -> str:
        """Returns the grammar of the reply to this prompt, "" if the reply is free. `functions` are
        those of the tools that may be called, in OpenAI's form with `strict`; the prompt ends with
        `opening`, the beginning of a call. Raises ValueError for a grammar that is not possible."""
        is_strict = any(function.get("strict") is True for function in functions)
        if response_format is None and not is_strict:
            return ""
        frame = self._parser.argument_frame if functions else None
        if functions and frame is None:
            if response_format is not None:
                raise ValueError(
                    "response_format: no grammar of this model family's tool calls is known; leave "
                    "out the tools or the format"
                )
            self._template.grammars.warn_once(NOT_ENFORCED)
            return ""
        end_token_id = self._template.end_token_id
        if end_token_id is None:
            raise ValueError("the chat template writes no token that ends a reply")
        if frame is None:
            assert response_format is not None
            body = format_rule(response_format)
        elif opening:
            body = self._rest_of_call(functions, opening, frame)
        else:
            body = self._text_or_calls(functions, frame, response_format)
        thinking = None if opening else self._template.thinking_after(prompt_ids)
        grammar = reply_grammar(body, end_token_id, thinking)
        self._template.grammars.check(grammar)
        return grammar

    def _rest_of_call(
        self, functions: Sequence[Function], opening: str, frame: tuple[str, str]
    ) -> str:
        """Returns the rule of any of these calls, after `opening`."""
        between, after = frame
        calls = []
        for function in functions:
            beginning = self._parser.opening(function["name"])
            if not beginning.startswith(opening):
                continue
            is_strict = function.get("strict") is True
            schema = (function.get("parameters") if is_strict else None) or {"type": "object"}
            parts = [
                self._template.text_rule(beginning[len(opening) :] + between),
                json_rule(schema, strict=is_strict),
                self._template.text_rule(after),
            ]
            calls.append("(" + " ".join(filter(None, parts)) + ")")
        return " | ".join(calls)

    def _text_or_calls(
        self,
        functions: Sequence[Function],
        frame: tuple[str, str],
        response_format: Mapping[str, Any] | None,
    ) -> str:
        """Returns the rule of text with calls in it, or of the format or calls alone. Where a call
        begins with a brace, text does not, and there is one call."""
        trigger = self._parser.opening(None)
        rest = self._rest_of_call(functions, trigger, frame)
        begin = self._template.text_rule(trigger)
        if response_format is not None:
            # No text before a call: a grammar cannot tell it from the beginning of an answer.
            answer = format_rule(response_format)
            return f"answer | ({begin} rest /\\n?/)+\nrest: {rest}\nanswer: {answer}"
        if trigger.startswith("{"):
            return f"{_TEXT_BUT_BRACE} | {begin} rest\nrest: {rest}"
        # Text never contains a special token. A tag that is text ends the text where it first
        # appears, hence `lazy`.
        is_text = "[lazy]" if begin.startswith('"') else ""
        call = f"trigger{is_text}: FREE {begin}\nFREE: {_TEXT}\nrest: {rest}"
        return f"FREE | (trigger rest)+ FREE\n{call}"


def functions_of(tools: Sequence[Mapping[str, Any]] | None) -> list[Function]:
    """Returns the functions of tools in OpenAI's form."""
    functions = (tool.get("function") for tool in tools or ())
    return [function for function in functions if isinstance(function, Mapping)]


def without_strict(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Returns the tools as the model is shown them: it need not read `strict`. None if there are
    none."""
    shown = []
    for tool in tools or ():
        function = tool.get("function")
        if isinstance(function, Mapping):
            tool = {**tool, "function": {k: function[k] for k in function if k != "strict"}}
        shown.append(dict(tool))
    return shown or None
