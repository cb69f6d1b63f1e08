"""The base class of tools with state. The names are verl's.

    class Search(BaseTool):
        async def create(self, instance_id, corpus="wiki", **kwargs):     # an episode begins
            self.seen[instance_id] = []
        async def execute(self, instance_id, parameters, **kwargs):       # the model calls it
            return await self.look_up(parameters["query"])
        async def calc_reward(self, instance_id, **kwargs):               # the episode is over
            return float(bool(self.seen[instance_id]))
        async def release(self, instance_id, **kwargs):                   # always, at the very end
            del self.seen[instance_id]

One object serves the whole run, many episodes at a time, so store the state of an episode by
`instance_id`. Methods may be plain `def`: they then run in threads, concurrently. A row's
`extra_info.tools_kwargs.<tool>.create_kwargs` are passed to `create`, and so on. A class with these
four methods need not derive from this one. Answers are text, and images for a model that sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ajet.tools.schema import OpenAIFunctionToolSchema, plain_schema

METHODS = ("create", "execute", "calc_reward", "release")


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """The answer of a tool. `image` has images for a model that sees them (core/images/forms.py);
    another model gets an error, as for a `video`."""

    text: str | None = ""
    image: list[Any] | None = None
    video: list[Any] | None = None


class BaseTool:
    """The base class of tools with state. Subclasses write `execute`. `config` and `tool_schema`
    come from the tools' file."""

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
