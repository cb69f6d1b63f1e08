"""Loads the tools of a run from the file that `ajet.rollout.multi_turn.tool_config_path` names.

tools:
  - {function: weather.py->weather}         # name: …, to show the model another name
  - {class_name: search.py->Search, config: {index: wiki}, tool_schema: {type: function, …}}
  - {mcp: {command: python, args: [server.py]}, scope: run}   # mcp_tools.py
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from ajet.core.config import AjetConfig
from ajet.core.config.compose import read_yaml
from ajet.core.config.explain import message_of
from ajet.core.config.section import Section
from ajet.core.errors import ConfigError
from ajet.core.errors.codes import Code
from ajet.core.inference.tool_schema import check_parameters, first_violation
from ajet.core.task.workflow_task import WorkflowTask
from ajet.core.text.error_text import did_you_mean
from ajet.core.text.redaction import FreeForm, remember_secrets
from ajet.core.user_code.activity import in_call
from ajet.core.user_code.importing import (
    as_import_spec,
    load_function,
    load_object,
    require_method,
    require_methods,
)
from ajet.tools.call import OpenTool, ToolEpisode, ToolResult, gather_or_cancel, run_tool_call
from ajet.tools.class_tool import ClassTool, refuse_agent_data
from ajet.tools.function import FunctionTool
from ajet.tools.mcp_session import McpAddress
from ajet.tools.mcp_tools import McpTools, Scope
from ajet.tools.tool import METHODS, BaseTool

Form = TypeVar("Form", bound=Section)
KEY = "ajet.rollout.multi_turn.tool_config_path"
answers_of_episodes: dict[str, Mapping[str, str]] = {}
"""Recorded answers by the ids of running episodes, then of calls. They replace calls while `ajet
fork` runs an episode again (backbones/debug/forking.py); the ids of calls count the calls of the
model, so they are the same when it gets the same replies."""
ToolSource = FunctionTool | ClassTool | McpTools
"""An entry of the tools' file. `check` returns the schemas of its tools, or raises `ConfigError`
for what would fail in every episode; `open` yields the tools of one episode and releases what they
hold at its end."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list; `location` names it in error messages."""

    values: dict[str, Any]
    location: str

    def validated_as(self, form: type[Form]) -> Form:
        """Returns the entry as an instance of `form`; raises `ConfigError` if it is not valid."""
        try:
            return form.model_validate(self.values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(map(str, first["loc"]))
            problem = f"{key}: {message_of(first)}" if key else message_of(first)
            if first["type"] == "extra_forbidden":
                hint = did_you_mean(str(first["loc"][-1]), form.model_fields)
                problem = f"{key}: no such key; {hint}"
            raise _listing_error(f"{self.location}: {problem}") from error


def _listing_error(problem: str) -> ConfigError:
    return ConfigError(problem, code=Code.TOOL_LISTING)


def find_file(path: str, base_dirs: Sequence[Path], key: str) -> Path:
    """Returns the file that the config's `key` names, looked for in each of `base_dirs`."""
    candidates = [folder / Path(path).expanduser() for folder in base_dirs]
    for file in candidates:
        if file.is_file():
            return file.resolve()
    raise _listing_error(
        f"{key}: {path}: no such file; looked for {', '.join(map(str, candidates))}"
    )


def read_listing(file: Path, section: str) -> list[Entry]:
    """Returns the entries of `section`; raises `ConfigError` for any other top-level key."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        content = OmegaConf.to_container(OmegaConf.create(read_yaml(file)), resolve=True)
    except OmegaConfBaseException as error:  # an interpolation: ${oc.env:NAME}
        raise _listing_error(f"{file}: {str(error).splitlines()[0]}") from error
    assert isinstance(content, dict)
    # Secrets in the file (an API key of an MCP server) must not appear in logs and records.
    free_form = FreeForm()
    free_form.allowed(content)
    remember_secrets(free_form.secrets)
    items = content.pop(section, None)
    if content or not isinstance(items, list):
        raise _listing_error(f"{file}: the file has one key, {section}, with a list")
    entries: list[Entry] = []
    for order, values in enumerate(items):
        if not isinstance(values, Mapping):
            raise _listing_error(f"{file}: {section}[{order}] is not a mapping")
        entries.append(Entry(dict(values), f"{file.name}: {section}[{order}]"))
    return entries


class FunctionEntry(Section):
    function: str
    name: str | None = None


class ClassEntry(Section):
    class_name: str
    config: dict[str, Any] = Field(default={})
    tool_schema: dict[str, Any] | None = None


class McpServer(Section):
    """An MCP server: `command` starts one, `url` names one that is running."""

    command: str | None = None
    args: list[str] = Field(default=[])
    env: dict[str, str] = Field(default={})
    url: str | None = None
    headers: dict[str, str] = Field(default={})
    transport: Literal["http", "sse"] = "http"


class McpEntry(Section):
    mcp: McpServer
    tools: list[str] | None = None
    scope: Scope = "episode"


class Toolbox:
    """Holds the tool sources of a run; `open` gives the tools of one episode."""

    def __init__(self, sources: Sequence[ToolSource]) -> None:
        self._sources = sources

    def check(self) -> None:
        """Raises `ConfigError` for what would fail in every episode."""
        _check_schemas([schema for source in self._sources for schema in source.check()])

    @asynccontextmanager
    async def open(
        self, workflow_task: WorkflowTask, timeout_s: float
    ) -> AsyncGenerator[EpisodeTools, None]:
        """Yields the tools of one episode. `timeout_s` bounds each tool call, and each call of a
        tool class's other methods."""
        tools_kwargs = extra_info(workflow_task).get("tools_kwargs") or {}
        if not isinstance(tools_kwargs, Mapping):
            raise ConfigError(
                f"task {workflow_task.task_id}: extra_info.tools_kwargs is not an object",
                code=Code.TASK_SETTING,
            )
        episode = ToolEpisode(workflow_task.episode_id, tools_kwargs, timeout_s)
        async with AsyncExitStack() as stack:
            tools: list[OpenTool] = []
            for source in self._sources:
                tools += await stack.enter_async_context(source.open(episode))
            recorded = answers_of_episodes.get(workflow_task.episode_id, {})
            yield EpisodeTools(tools, timeout_s, episode.failed_ends, recorded)


class EpisodeTools:
    """The tools of one episode. `failed_ends` is filled when the tools are released. `recorded`
    holds answers that replace calls, by the ids of the calls."""

    def __init__(
        self,
        tools: Sequence[OpenTool],
        timeout_s: float,
        failed_ends: Sequence[str],
        recorded: Mapping[str, str],
    ) -> None:
        # Checked again, because an MCP server may offer other tools than at the check.
        _check_schemas([tool.schema for tool in tools])
        self._tools = {tool.name: tool for tool in tools}
        self._timeout_s = timeout_s
        self.failed_ends = failed_ends
        self._recorded = recorded

    @property
    def schemas(self) -> list[dict[str, Any]]:
        return [tool.schema for tool in self._tools.values()]

    def problem(self, name: str, arguments: dict[str, Any]) -> str | None:
        """Returns why a call cannot be made, or None if it can."""
        if name not in self._tools:
            otherwise = f"the tools are: {', '.join(self._tools) or 'none'}"
            hint = did_you_mean(name, self._tools, otherwise)
            return f"there is no tool {name!r}; {hint}"
        tool = self._tools[name]
        violation = first_violation(name, tool.schema["function"]["parameters"], arguments)
        if violation is None:
            problem = tool.problem(arguments)
        else:
            path = ".".join(map(str, violation.absolute_path))
            problem = f"{path}: {violation.message}" if path else violation.message
        return f"the arguments of {name} are wrong: {problem}" if problem else None

    def recorded_answer(self, name: str, call_id: str) -> str | None:
        """Returns the recorded answer to this call; None if the tool is to be called. A tool that
        gives a reward keeps state for its episode, so it is called anyway."""
        return None if self._tools[name].reward else self._recorded.get(call_id)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Returns the tool's result; errors and timeouts are results too."""
        tool = self._tools[name]

        async def work() -> Any:
            return await tool.call(arguments)

        with in_call(f"tool {name}"):
            return await run_tool_call(work(), self._timeout_s)

    async def rewards(self) -> dict[str, float]:
        """Returns the reward of each tool that gives one to the episode."""
        reward_calls = {name: tool.reward for name, tool in self._tools.items() if tool.reward}
        rewards = await gather_or_cancel(reward() for reward in reward_calls.values())
        pairs = zip(reward_calls, rewards, strict=True)
        return {name: float(reward) for name, reward in pairs if reward is not None}


def load_toolbox(config: AjetConfig) -> Toolbox:
    """Returns the tools of the config's file, or an empty toolbox without a file. The same file
    gives the same toolbox. Classes and functions are looked for in the file's folder, then in the
    config's folders; verl's `package.module.Class` is accepted too."""
    path = config.ajet.rollout.multi_turn.tool_config_path
    if path is None:
        return Toolbox([])
    file = find_file(path, config.base_dirs, KEY)
    return _load_cached(file, file.stat().st_mtime_ns, (file.parent, *config.base_dirs))


def answers_in(messages: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the tools' answers in a conversation by the ids of their calls."""
    return {
        str(message["tool_call_id"]): message["content"]
        for message in messages
        if message.get("role") == "tool"
        and message.get("tool_call_id") is not None
        and isinstance(message.get("content"), str)
    }


def extra_info(workflow_task: WorkflowTask) -> Mapping[str, Any]:
    """Returns the row's `extra_info`, in which verl's data sets keep arguments of tools and of
    simulated users."""
    value = workflow_task.task.metadata.get("extra_info")
    return value if isinstance(value, Mapping) else {}


def _check_schemas(schemas: Sequence[dict[str, Any]]) -> None:
    """Raises `ConfigError` for tools that no model could call."""
    names: set[str] = set()
    for function in (schema["function"] for schema in schemas):
        if function["name"] in names:
            raise ConfigError(
                f"{KEY}: two tools are called {function['name']!r}", code=Code.TOOL_TWICE
            )
        names.add(function["name"])
        check_parameters(function["name"], function["parameters"])


@lru_cache(maxsize=16)
def _load_cached(file: Path, _changed_ns: int, base_dirs: tuple[Path, ...]) -> Toolbox:
    return Toolbox([_source(entry, file, base_dirs) for entry in read_listing(file, "tools")])


def _source(entry: Entry, file: Path, base_dirs: tuple[Path, ...]) -> ToolSource:
    if "function" in entry.values:
        form = entry.validated_as(FunctionEntry)
        location = f"{entry.location}.function"
        function = load_function(form.function, base_dirs=base_dirs, location=location)
        return FunctionTool(function, form.name, f"{location}: {form.function!r}")
    if "class_name" in entry.values:
        form = entry.validated_as(ClassEntry)
        location = f"{entry.location}.class_name"
        spec = as_import_spec(form.class_name)
        tool_class = load_object(spec, base_dirs=base_dirs, base=object, location=location)
        location = f"{location}: {form.class_name!r}"
        require_methods(tool_class, METHODS, BaseTool, location)
        require_method(tool_class, "execute", BaseTool, ("instance_id", "parameters"), location)
        refuse_agent_data(tool_class, location)
        return ClassTool(tool_class, form.config, form.tool_schema, location)
    if "mcp" in entry.values:
        form = entry.validated_as(McpEntry)
        server = form.mcp
        if (server.command is None) == (server.url is None):
            raise ConfigError(
                f"{entry.location}.mcp: give either a command (a server to start) or a url",
                code=Code.TOOL_LISTING,
            )
        address = McpAddress(**dict(server), cwd=file.parent)
        return McpTools(address, form.tools, form.scope, entry.location)
    raise ConfigError(
        f"{entry.location}: a tool is one of function, class_name, mcp", code=Code.TOOL_LISTING
    )
