"""Makes a tool of a Python function: its schema for the model, and the types of its arguments.

The schema comes from signature, annotations and docstring (Google's, NumPy's and Sphinx's styles),
in AgentScope's form: a function gives the same prompt in both.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, get_type_hints

from docstring_parser import parse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ajet.core.config.explain import message_of
from ajet.core.user_code.importing import run_user_code
from ajet.tools.call import OpenTool, ToolEpisode, invoke


class FunctionTool:
    """A tool source with one function, which has no state. Arguments get the types of their
    annotations, so a parameter may be a pydantic model, an enum or a date. `*args` are not
    supported."""

    def __init__(self, function: Callable[..., Any], name: str | None, location: str) -> None:
        self._function = function
        self._arguments = run_user_code(partial(_arguments_model, function), location)
        self.schema = run_user_code(
            partial(_schema, function, name or function.__name__, self._arguments), location
        )

    def check(self) -> list[dict[str, Any]]:
        return [self.schema]

    @asynccontextmanager
    async def open(self, episode: ToolEpisode) -> AsyncGenerator[list[OpenTool], None]:
        yield [OpenTool(self.schema, self.call, problem=self.problem)]

    def problem(self, arguments: dict[str, Any]) -> str | None:
        """Returns why the function cannot be called with these arguments, or None if it can."""
        try:
            self._arguments.model_validate(arguments)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = ".".join(map(str, first["loc"]))
            return f"{path}: {message_of(first)}" if path else message_of(first)
        return None

    async def call(self, arguments: dict[str, Any]) -> Any:
        # Only the arguments that the model wrote: the function's defaults stay the function's.
        validated = self._arguments.model_validate(arguments)
        kwargs = {name: getattr(validated, name) for name in validated.model_fields_set}
        return await invoke(self._function, **kwargs)


def tool_schema(name: str, parameters: dict[str, Any], description: str | None) -> dict[str, Any]:
    """Returns a schema in OpenAI's form. Its keys have AgentScope's order, because chat templates
    write them in the dict's order."""
    function: dict[str, Any] = {"name": name, "parameters": parameters}
    if description:
        function["description"] = description
    return {"type": "function", "function": function}


def _schema(function: Callable[..., Any], name: str, arguments: type[BaseModel]) -> dict[str, Any]:
    parameters = _without_titles(arguments.model_json_schema())
    parameters.pop("additionalProperties", None)  # AgentScope's schemas do not have it
    docstring = parse(inspect.getdoc(function) or "")
    description = "\n".join(filter(None, [docstring.short_description, docstring.long_description]))
    return tool_schema(name, parameters, description)


def _arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Returns a pydantic model with one field for each parameter of the function."""
    docstring = {
        param.arg_name: param.description for param in parse(inspect.getdoc(function) or "").params
    }
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    fields: dict[str, Any] = {
        parameter.name: (
            hints.get(parameter.name, Any),
            Field(
                ... if parameter.default is parameter.empty else parameter.default,
                description=docstring.get(parameter.name),
            ),
        )
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    extra = "allow" if takes_any else "forbid"
    return create_model(
        "Arguments",
        __config__=ConfigDict(arbitrary_types_allowed=True, extra=extra, protected_namespaces=()),
        **fields,
    )


def _without_titles(schema: Any) -> Any:
    """Returns the schema without pydantic's titles, which repeat the names. A parameter called
    "title" stays: the keys of `properties` are names, not keywords."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: _without_titles(inner) for name, inner in value.items()}
        if key in ("properties", "$defs")
        else _without_titles(value)
        for key, value in schema.items()
        if key != "title"
    }
