"""Grammars that a reply must follow, as text.

    response_format --format_rule--> rule --reply_grammar--> grammar --matcher.py--> masks

The text is what requests, records and servers carry, in llguidance's dialect of Lark. It ends with
the token that ends a reply, so that a reply ends when the grammar is complete and not before.

JSON is written on one line, as Python's ``json.dumps`` writes it: with free white space a model
could write spaces until its reply is cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ajet.core.text.error_text import message_of

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
MAX_LENGTH = 200_000
"""The most characters of a grammar."""

FORMATS = ("text", "json_object", "json_schema", "regex", "choice", "grammar")
"""The types of `response_format`; OpenAI has the first three."""


class Thinking(NamedTuple):
    """The thinking that a reply may begin with: the rules of its tags, texts or the ids of special
    tokens, and whether the prompt has opened it already."""

    opening: str
    closing: str
    is_open: bool


def response_format(value: Any) -> dict[str, Any] | None:
    """Returns a checked copy of a `response_format`, None for free text; raises ValueError for a
    type or a content that is not served. The grammar itself is checked by `Grammars.check`.

    ``{"type": "json_object"}``, ``{"type": "json_schema", "json_schema": {"schema": {…}}}``,
    ``{"type": "regex", "regex": "…"}``, ``{"type": "choice", "choice": ["…"]}`` and ``{"type":
    "grammar", "grammar": "start: …"}``, which is Lark.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"response_format is not JSON: {message_of(error)}") from error
    if len(text) > MAX_LENGTH:
        raise ValueError(f"response_format has more than {MAX_LENGTH} characters")
    copied = json.loads(text)
    kind = copied.get("type") if isinstance(copied, dict) else None
    if kind not in FORMATS:
        raise ValueError(f"response_format: the type is one of {', '.join(FORMATS)}")
    if kind == "text":
        return None
    problem = _content_problem(kind, copied)
    if problem:
        raise ValueError(f"response_format: {problem}")
    return copied


def _content_problem(kind: str, content: Mapping[str, Any]) -> str | None:
    match kind:
        case "json_schema":
            schema = content.get("json_schema")
            if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
                return "json_schema must hold a schema, an object"
        case "regex" | "grammar":
            if not isinstance(content.get(kind), str):
                return f"{kind} must be text"
        case "choice":
            choices = content.get("choice")
            texts = choices if isinstance(choices, list) else []
            if not texts or not all(isinstance(text, str) and text for text in texts):
                return "choice must be a list of texts"
    return None


def reply_grammar(body: str, end_token_id: int, thinking: Thinking | None = None) -> str:
    """Returns the grammar of a whole reply: perhaps thinking, then `body`, the rule of the answer,
    and the token that ends the reply."""
    if thinking is None:
        return f"start: body <[{end_token_id}]>\nbody: {body}"
    before = "thought" if thinking.is_open else f"({thinking.opening} thought)?"
    start = f"start: {before} body <[{end_token_id}]>\nbody: {body}\nFREE_TEXT: /(.|\\n)*/\n"
    # Text never contains a special token. A tag that is text ends the thought where it first
    # appears, hence `lazy`.
    if thinking.closing.startswith("<["):
        return f"{start}thought: FREE_TEXT {thinking.closing} /[ \\n]*/"
    return f"{start}thought: ending /[ \\n]*/\nending[lazy]: FREE_TEXT {thinking.closing}"


def format_rule(content: Mapping[str, Any]) -> str:
    """Returns the rule of an answer in this `response_format`."""
    match content["type"]:
        case "json_object":
            return json_rule({"type": "object"})
        case "json_schema":
            schema = content["json_schema"]
            return json_rule(schema["schema"], strict=schema.get("strict") is True)
        case "regex":
            from llguidance import regex_to_lark

            return f"/{regex_to_lark(content['regex'])}/"
        case "choice":
            return " | ".join(map(literal, content["choice"]))
        case _:
            return f"%lark {{\n{content['grammar']}\n}}"


def json_rule(schema: Mapping[str, Any], *, strict: bool = False) -> str:
    """Returns the rule of a JSON value with this schema. If it is strict, objects have no keys but
    those that it names, as APIs demand of a strict schema."""
    if strict:
        schema = _closed(schema)
    return "%json " + json.dumps({**schema, "x-guidance": JSON_STYLE}, ensure_ascii=False)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    # "properties" may be the name of a property: then it holds a schema, not schemas by name.
    if closed.get("type") == "object" and isinstance(closed.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def literal(text: str) -> str:
    """Returns the rule of exactly this text."""
    return json.dumps(text, ensure_ascii=False)
