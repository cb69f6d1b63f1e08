"""Reads arguments that a family writes as text between tags, without escapes and without types.

    read_values(text, position, …)           {"a": "2", "b": "2"}, and where they end
    coerce_types(a reply of these, tools)    {"a": 2, "b": "2"}, where the schemas of the tool's
                                             parameters are an integer and a string

If the schema allows several types, or none is known, a value is read as JSON, and stays text if it
is none. A value that is not of its type stays text too, and the tool answers with an error.

Not covered: schemas behind a `$ref`, which count as unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ajet.core.inference.chat_template import Tools
from ajet.core.inference.tool_parser import ParsedReply
from ajet.tool_parsers.scanning import read_json

Literals = Mapping[str, Any]
_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def read_values(
    text: str, position: int, key: re.Pattern[str], value_end: re.Pattern[str]
) -> tuple[dict[str, Any], int] | None:
    """Returns the arguments at `position` as text, and their end. `key` matches from before a key,
    which is its first group, up to the value; `value_end` matches the end of a value. Returns None
    if a value is not closed or a key comes twice."""
    values: dict[str, Any] = {}
    while found := key.match(text, position):
        end = value_end.search(text, found.end())
        name = found[1]
        if not end or name in values:
            return None
        values[name] = text[found.end() : end.start()]
        position = end.end()
    return values, position


def coerce_types(
    parsed: ParsedReply, tools: Tools | None, literals: Literals | None = None
) -> ParsedReply:
    """Returns the reply with the arguments of its calls, which are text, converted to the types of
    their schemas. `literals` are values that the family writes unlike JSON (Python's `True`)."""
    schemas = _schemas(tools or ()) if parsed.tool_calls else {}
    calls = (
        replace(
            call,
            arguments=_coerce_arguments(call.arguments, schemas.get(call.name, {}), literals or {}),
        )
        for call in parsed.tool_calls
    )
    return replace(parsed, tool_calls=tuple(calls))


def _schemas(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """Returns the schemas of each tool's parameters by the tool's name, if they have any."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in tools:
        function = tool.get("function", tool)
        parameters = function.get("parameters") if isinstance(function, Mapping) else None
        properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
        if isinstance(properties, Mapping):
            found[str(function.get("name"))] = properties
    return found


def _coerce_arguments(
    arguments: dict[str, Any], properties: Mapping[str, Any], literals: Literals
) -> dict[str, Any]:
    return {
        key: _coerce_value(text, _types(properties.get(key)), literals)
        for key, text in arguments.items()
    }


def _coerce_value(text: str, types: set[str], literals: Literals) -> Any:
    if types == {"string"}:
        return text
    stripped = text.strip()
    found = (literals[stripped], len(stripped)) if stripped in literals else read_json(stripped, 0)
    if not found or found[1] != len(stripped) or isinstance(found[0], str):
        return text
    if types and not any(type(found[0]) in _TYPES.get(name, ()) for name in types):
        return text
    return found[0]


def _types(schema: Any) -> set[str]:
    """Returns the types that a schema allows, or an empty set if it does not say."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, list):
        return set(map(str, named))
    if "enum" in schema and all(isinstance(value, str) for value in schema["enum"]):
        return {"string"}
    either = schema.get("anyOf") or schema.get("oneOf")
    parts = [_types(part) for part in either] if isinstance(either, list) else []
    return set[str]().union(*parts) if all(parts) else set()
