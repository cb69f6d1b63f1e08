"""Writes a JSON schema of actions as an instruction, and reads an action from text by it.

docs/environments.md has the table of forms. Fields with one constant value, and the field
`metadata`, are not shown. Whether a value is allowed is up to the environment.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]
WORDS = ("hello", "look", "wait", "7", "yes", "north")
"""Texts of random actions, for fields whose schema names no values."""


@dataclass(frozen=True, slots=True)
class ActionForm:
    """The fields of an action: their schemas by name, and which are required. `text_field` is the
    one whose value is the whole text; None if the text is a JSON object."""

    fields: Mapping[str, Schema]
    required: Sequence[str]
    text_field: str | None

    @classmethod
    def from_schema(cls, schema: Schema, text_field: str | None = None) -> ActionForm:
        """Returns the form of a schema. Raises KeyError if it has no field `text_field`."""
        properties = _mapping(schema.get("properties"))
        fields = {name: _resolved(field, schema) for name, field in properties.items()}
        fields = {n: f for n, f in fields.items() if n != "metadata" and "const" not in f}
        if text_field is not None and text_field not in fields:
            raise KeyError(text_field)
        if text_field is None and len(fields) == 1:
            text_field = next(iter(fields))
        required = schema.get("required")
        return cls(fields, required if isinstance(required, list) else (), text_field)

    def instruction(self) -> str:
        if self.text_field is None:
            lines = [self._described(name) for name in self.fields]
            return "Write an action: a JSON object with these fields.\n" + "\n".join(lines)
        schema = self.fields[self.text_field]
        if values := _values(schema):
            return f"Write one action: {', '.join(map(str, values))}."
        about = _about(schema) or self.text_field.replace("_", " ")
        type_name = _type(schema)
        form = "" if type_name == "string" else f" ({type_name}, as JSON)"
        return f"Write an action: {about}{form}."

    def read(self, text: str) -> dict[str, Any] | None:
        """Returns the action, or None if the text does not have this form."""
        if self.text_field is None:
            return read_object(text)
        if _type(self.fields[self.text_field]) == "string":
            return {self.text_field: text}
        value = _read_json(text)
        return None if value is None else {self.text_field: value}

    def sample(self, rng: random.Random) -> str:
        if self.text_field is not None:
            value = _sample(self.fields[self.text_field], rng)
            return value if isinstance(value, str) else json.dumps(value)
        return json.dumps({name: _sample(self.fields[name], rng) for name in self.fields})

    def _described(self, name: str) -> str:
        schema = self.fields[name]
        values = _values(schema)
        type_name = f"one of {json.dumps(values)}" if values else _type(schema)
        optional = "" if name in self.required else ", optional"
        about = _about(schema)
        return f"- {name} ({type_name}{optional}){f': {about}' if about else ''}"


@dataclass(frozen=True, slots=True)
class ToolForm:
    """The tools of an environment by name: the schemas of their arguments, and what they do."""

    arguments: Mapping[str, ActionForm]
    about: Mapping[str, str]

    def instruction(self) -> str:
        lines = ['Write an action: {"name": a tool, "arguments": {…}}. The tools:']
        for name, form in self.arguments.items():
            lines.append(f"{name}: {self.about[name]}" if self.about[name] else name)
            lines += [form._described(field) for field in form.fields]
        return "\n".join(lines)

    def read(self, text: str) -> tuple[str, dict[str, Any]] | None:
        """Returns the tool and its arguments, or None for text that calls none of these tools."""
        call = read_object(text)
        if call is None or not isinstance(call.get("arguments", {}), dict):
            return None
        name = call.get("name")
        if not isinstance(name, str) or name not in self.arguments:
            return None
        return name, call.get("arguments", {})

    def sample(self, rng: random.Random) -> str:
        name = rng.choice(sorted(self.arguments))
        fields = self.arguments[name].fields
        arguments = {field: _sample(fields[field], rng) for field in fields}
        return json.dumps({"name": name, "arguments": arguments})


def value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fields_text(fields: Mapping[str, Any]) -> str:
    """Returns the one field's value, or a line `name: value` for each."""
    if len(fields) == 1:
        return value_text(next(iter(fields.values())))
    lines = [(name, value_text(value)) for name, value in fields.items()]
    # A value of several lines begins below its name.
    return "\n".join(f"{n}:\n{text}" if "\n" in text else f"{n}: {text}" for n, text in lines)


def read_object(text: str) -> dict[str, Any] | None:
    value = _read_json(text)
    return value if isinstance(value, dict) else None


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # too deep, or a number of too many digits
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _resolved(schema: Any, root: Schema) -> Schema:
    """Follows a reference into the same document, and takes the first type of an optional
    value."""
    schema = _mapping(schema)
    for options in (schema.get("anyOf"), schema.get("allOf")):
        if isinstance(options, list):
            chosen = next((o for o in map(_mapping, options) if o.get("type") != "null"), {})
            # What stands next to the options, such as a description, wins over the option's.
            siblings = {n: value for n, value in schema.items() if n not in ("anyOf", "allOf")}
            schema = {**_resolved(chosen, root), **siblings}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        target = _mapping(_mapping(root.get("$defs")).get(name))
        schema = {**target, **{k: v for k, v in schema.items() if k != "$ref"}}
    return schema


def _values(schema: Schema) -> Sequence[Any]:
    values = schema.get("enum")
    return values if isinstance(values, list) else ()


def _type(schema: Schema) -> str:
    type_name = schema.get("type")
    if isinstance(type_name, str):
        return type_name
    return "string" if _values(schema) else "any value"


def _about(schema: Schema) -> str:
    about = schema.get("description")
    return about.strip().rstrip(".") if isinstance(about, str) else ""


def _sample(schema: Schema, rng: random.Random) -> Any:
    if values := _values(schema):
        return rng.choice(values)
    type_name = _type(schema)
    if type_name == "boolean":
        return rng.random() < 0.5
    if type_name in ("integer", "number"):
        low = schema.get("minimum", 0)
        high = schema.get("maximum", low + 9)
        return (
            rng.randint(int(low), int(high)) if type_name == "integer" else rng.uniform(low, high)
        )
    if type_name == "array":
        return [_sample(_mapping(schema.get("items")), rng) for _ in range(2)]
    if type_name == "object":
        return {}
    return rng.choice(WORDS)
