"""The interface of tool sources: a source is opened for each episode, and closed at its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ToolEpisode:
    """The episode that tools are opened for. `tools_kwargs` is the row's `extra_info.tools_kwargs`;
    `failed_ends` collects the names of cleanups that failed."""

    episode_id: str
    tools_kwargs: Mapping[str, Any]
    timeout_s: float
    failed_ends: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class OpenTool:
    """One tool of one episode. `reward` is None for tools that never give a reward; `problem`
    returns why arguments are refused, beyond what the schema says."""

    schema: dict[str, Any]
    call: Callable[[dict[str, Any]], Awaitable[Any]]
    reward: Callable[[], Coroutine[Any, Any, float | None]] | None = None
    problem: Callable[[dict[str, Any]], str | None] = lambda arguments: None

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]


class ToolSource(Protocol):
    """One entry of the tools' file."""

    def open(self, episode: ToolEpisode) -> AbstractAsyncContextManager[list[OpenTool]]:
        """Yields the tools for one episode and releases what they hold at its end, however it
        ends."""
        ...

    def check(self) -> list[dict[str, Any]]:
        """Returns the schemas that the model will be shown; raises `ConfigError` for what would
        fail in every episode."""
        ...
