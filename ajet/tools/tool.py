"""The base class of tools with state, and the schema of a tool. The names are verl's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

METHODS = ("create", "execute", "calc_reward", "release")


class OpenAIFunctionToolSchema(dict[str, Any]):
    """A tool's schema in OpenAI's form: a dict whose keys are attributes too, also of objects
    within it, as in verl, whose schema is a pydantic model; tools may use either. Unlike verl's
    model this one keeps every key of a JSON schema and checks nothing: `Toolbox.check` does."""

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


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The answer of a tool. `image` has images for a model that sees them (core/images/forms.py);
    another model gets an error, as for a `video`."""

    text: str | None = ""
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """The base class of tools with state. Subclasses write `execute`. `config` and `tool_schema`
    come from the tools' file.

    One object serves the whole run, many episodes at a time, so store the state of an episode by
    `instance_id`. Methods may be plain `def`: they then run in threads, concurrently. A row's
    `extra_info.tools_kwargs.<tool>.create_kwargs` are passed to `create`, and so on. A class with
    these four methods need not derive from this one."""

    def __init__(
        self, config: dict[str, Any], tool_schema: Mapping[str, Any] | None = None
    ) -> None:
        self.config = config
        schema: Any = tool_schema or self.get_openai_tool_schema()
        self.tool_schema: Any = (
            OpenAIFunctionToolSchema(schema) if isinstance(schema, Mapping) else schema
        )

    @cached_property
    def name(self) -> str:
        return plain_schema(self.tool_schema)["function"]["name"]

    def get_openai_tool_schema(self) -> Any:
        """Returns the schema if the file gives none."""
        raise NotImplementedError(
            f"{type(self).__name__} has no schema: give tool_schema in the tools' file, or define "
            "get_openai_tool_schema()"
        )

    async def create(self, instance_id: str, **create_kwargs: Any) -> Any:
        """Called when an episode begins. `create_kwargs` are the row's; tools written for verl also
        get them as one argument of that name."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """Returns the answer to a call: text, a `ToolResponse`, or `(answer, step_reward,
        metrics)`."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float | None:
        """Returns the reward of the episode for this tool, or None for no reward."""

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """Called when the episode is over, however it ended."""
