"""Runs a user's tool class: one object for a run, one instance of its state for each episode."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.user_code.importing import line_of, run_user_code
from ajet.tools.call import (
    OpenTool,
    ToolEpisode,
    as_tool_result,
    invoke,
    run_cleanup,
    run_with_timeout,
)
from ajet.tools.tool import OpenAIFunctionToolSchema, plain_schema


class ClassTool:
    """A tool source with one tool: an instance of a class with the methods of `BaseTool`.

    `create` is called when an episode begins, and may return another instance id than the
    episode's; one that fails must release what it had acquired. A `release` that fails, or takes
    longer than a call may, is counted and does not fail the episode."""

    def __init__(
        self,
        tool_class: type[Any],
        config: dict[str, Any],
        tool_schema: dict[str, Any] | None,
        location: str,
    ) -> None:
        file_schema = None if tool_schema is None else OpenAIFunctionToolSchema(tool_schema)
        self._tool = run_user_code(partial(tool_class, config, file_schema), location)

        def read_schema() -> Any:
            """The schema that the tool holds, else the one that it makes, else the file's."""
            schema = getattr(self._tool, "tool_schema", None)
            make = getattr(self._tool, "get_openai_tool_schema", None)
            if schema is None and callable(make):
                schema = make()
            return plain_schema(file_schema if schema is None else schema)

        self._schema: dict[str, Any] = run_user_code(read_schema, location)
        function = self._schema.get("function") if isinstance(self._schema, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name:
            raise ConfigError(
                f"{location}: tool_schema has no name that is text: write "
                "{type: function, function: {name: …, description: …, parameters: {…}}}",
                code=Code.TOOL_SCHEMA,
            )
        function.setdefault("parameters", {"type": "object", "properties": {}})

    def check(self) -> list[dict[str, Any]]:
        return [self._schema]

    @asynccontextmanager
    async def open(self, episode: ToolEpisode) -> AsyncGenerator[list[OpenTool], None]:
        name = self._schema["function"]["name"]
        tool_kwargs = episode.tools_kwargs.get(name) or {}
        if not isinstance(tool_kwargs, Mapping):
            raise ConfigError(
                f"extra_info.tools_kwargs.{name} of the row is not an object: {tool_kwargs!r}",
                code=Code.TASK_SETTING,
            )
        instance = episode.episode_id

        async def method(name: str, *args: Any) -> Any:
            function = getattr(self._tool, name)
            return await invoke(function, instance, *args, **_accepted(function, name, tool_kwargs))

        async def call(arguments: dict[str, Any]) -> Any:
            return as_tool_result(await method("execute", arguments))

        async def reward() -> float | None:
            return await run_with_timeout(episode.timeout_s, method("calc_reward"))

        created = await run_with_timeout(episode.timeout_s, method("create"))
        first = created[0] if isinstance(created, tuple) and created else created  # verl's tuples
        if isinstance(first, str) and first:
            instance = first
        try:
            yield [OpenTool(self._schema, call, reward)]
        finally:
            who = f"{type(self._tool).__name__}.release()"
            if not await run_cleanup(episode.timeout_s, method("release"), who):
                episode.failed_ends.append(who)


def refuse_agent_data(tool_class: type, location: str) -> None:
    """Raises ConfigError for a class whose `execute` asks for verl's `agent_data`, as a parameter
    or by looking up that name in its keyword arguments."""
    function = inspect.unwrap(tool_class.execute)  # pyright: ignore[reportAttributeAccessIssue]
    code = getattr(function, "__code__", None)
    if code is not None and "agent_data" in (*code.co_varnames, *code.co_consts):
        raise ConfigError(
            f"{location}: {line_of(tool_class)}: {tool_class.__name__}.execute asks for "
            "agent_data, the state of verl's loop, which ajet does not have: keep the episode's "
            "state by instance_id",
            code=Code.TOOL_CLASS,
        )


def _accepted(
    function: Callable[..., Any], name: str, tool_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    method_kwargs = dict(tool_kwargs.get(f"{name}_kwargs") or {})
    if name == "create":
        # verl passes them one by one or, in other versions, as one `create_kwargs`.
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_KEYWORD or p.name == "create_kwargs" for p in parameters):
            method_kwargs.setdefault("create_kwargs", dict(method_kwargs))
    return method_kwargs
