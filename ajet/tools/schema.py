"""The schema of a tool in OpenAI's form: a dict whose keys are attributes too.

    schema = OpenAIFunctionToolSchema.model_validate({"type": "function", "function": {…}})
    schema["function"]["name"];  schema.function.name;  schema.model_dump(exclude_none=True)

The names are verl's, whose schema is a pydantic model; tools may use either. Unlike verl's model
this one keeps every key of a JSON schema and checks nothing: `Toolbox.check` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self


class OpenAIFunctionToolSchema(dict[str, Any]):
    """A tool's schema. Objects within it have the same class, so they have attributes as well."""

    def __init__(self, values: Mapping[str, Any] | None = None, /, **fields: Any) -> None:
        schema = dict(values or {}) | fields
        super().__init__({name: _with_attributes(value) for name, value in schema.items()})

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"the tool's schema has no {name!r}; it has {', '.join(self)}")

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Self:
        return cls(values)

    def model_dump(self, *, exclude_none: bool = False, **_options: Any) -> dict[str, Any]:
        return _plain(self, exclude_none)


def plain_schema(schema: Any) -> Any:
    """Returns a schema as plain dicts and lists, whether it is a dict or a pydantic model. The
    defaults of a pydantic model are dropped, as in verl: they are not shown to the model."""
    if isinstance(schema, Mapping):
        return _plain(schema, False)
    dump: Any = getattr(schema, "model_dump", None)
    if dump is not None:
        fields: dict[str, Any] = dump(exclude_unset=True, exclude_none=True)
        return {"type": "function", **fields}
    return schema


def _with_attributes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return OpenAIFunctionToolSchema(value)
    if isinstance(value, list | tuple):
        return [_with_attributes(item) for item in value]
    return value


def _plain(value: Any, exclude_none: bool) -> Any:
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if v is not None or not exclude_none}
        return {name: _plain(item, exclude_none) for name, item in kept.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, exclude_none) for item in value]
    return value
