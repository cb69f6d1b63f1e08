"""What a user writes for a tool with state. The names are verl's.

    class Search(BaseTool):
        async def create(self, instance_id, corpus="wiki", **kwargs):     # an episode begins
            self.seen[instance_id] = []
        async def execute(self, instance_id, parameters, **kwargs):       # the model calls it
            return await self.look_up(parameters["query"])
        async def calc_reward(self, instance_id, **kwargs):               # the episode is over
            return float(bool(self.seen[instance_id]))
        async def release(self, instance_id, **kwargs):                   # always, at the very end
            del self.seen[instance_id]

One object serves the whole run, many episodes at a time: what belongs to an episode is kept by
`instance_id`. Methods may be plain `def`: they then run in threads, several at the same time. A
row's `extra_info.tools_kwargs.<tool>.create_kwargs` reach `create`, `execute_kwargs` reach
`execute`, and so on.

Not covered: images and other answers that are not text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """What a tool answers."""

    text: str = ""


class BaseTool:
    """Subclass this and write `execute`. `config` and `tool_schema` are those of the tools' file;
    the schema has OpenAI's form."""

    def __init__(self, config: dict[str, Any], tool_schema: dict[str, Any] | None = None) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()

    @property
    def name(self) -> str:
        return self.tool_schema["function"]["name"]

    def get_openai_tool_schema(self) -> dict[str, Any]:
        """The schema, where the file gives none."""
        raise NotImplementedError(
            f"{type(self).__name__} has no schema: give tool_schema in the tools' file, or define "
            "get_openai_tool_schema()"
        )

    async def create(self, instance_id: str, **create_kwargs: Any) -> Any:
        """An episode begins. `create_kwargs` are the row's, and once more, whole, under the name
        `create_kwargs`, where tools written for verl look."""

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        """The answer to a call: text, a `ToolResponse`, or `(answer, step_reward, metrics)`."""
        raise NotImplementedError(f"{type(self).__name__} does not define execute()")

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float | None:
        """What the episode earns by this tool; None gives nothing."""

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """The episode is over, however it ended."""
