"""Offers the tools of an MCP server, over stdio or HTTP.

- mcp: {command: python, args: [server.py], env: {KEY: value}}    # a process, in this folder
  tools: [search]                                                 # omit for all of them
- mcp: {url: "http://127.0.0.1:8000/mcp", headers: {…}, transport: http}     # or sse
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.inference.tool_schema import check_parameters
from ajet.core.process.bounded_loop import run_bounded
from ajet.core.text.plain_value import printable
from ajet.tools.call import OpenTool, ToolEpisode, ToolFault, ToolResult, openai_image
from ajet.tools.function import tool_schema
from ajet.tools.mcp_session import McpAddress, McpConnectionLost, McpSession, open_session

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock

Scope = Literal["episode", "run"]
MAX_LISTED_CHARACTERS = 300


class McpTools:
    """A tool source with the tools of a server. With the scope `episode` each episode has a
    connection (over stdio: a server process), so that no state of a server reaches another episode;
    `run` shares one among all episodes, for servers without state. A shared server that ended is
    started again for the next episode; when it ends during an episode, that episode's calls are
    answered with an error."""

    def __init__(
        self, address: McpAddress, names: Sequence[str] | None, scope: Scope, location: str
    ) -> None:
        self._address = address
        self._names = names
        self._scope = scope
        self._where = location
        self._shared: asyncio.Future[McpSession] | None = None
        self._session: McpSession | None = None

    def check(self) -> list[dict[str, Any]]:
        """Starts the server once and returns the schemas of its tools."""

        async def look() -> list[dict[str, Any]]:
            async with self._connected() as session:
                return [tool.schema for tool in self._tools(session)]

        try:
            return run_bounded(look())
        except EnvironmentFault as error:
            raise ConfigError(f"{self._where}: {error}", code=Code.TOOL_SERVER) from error

    @asynccontextmanager
    async def open(self, episode: ToolEpisode) -> AsyncGenerator[list[OpenTool], None]:
        async with self._connected() as session:
            yield self._tools(session)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[McpSession, None]:
        if self._scope == "run":
            yield await self._shared_session()
            return
        session = await open_session(self._address)
        try:
            yield session
        finally:
            await session.close()

    async def _shared_session(self) -> McpSession:
        """Returns the session that all episodes share; the first caller starts it."""

        async def reconnect() -> McpSession:
            dead, self._session = self._session, None
            if dead is not None:
                await dead.close()  # its process may still be running
            self._session = await open_session(self._address)
            return self._session

        if self._session is not None and self._session.is_alive:
            return self._session
        if self._shared is None or self._shared.done():
            self._shared = asyncio.ensure_future(reconnect())
        # A cancelled episode must not cancel the start that others wait for.
        return await asyncio.shield(self._shared)

    def _tools(self, session: McpSession) -> list[OpenTool]:
        """Returns the tools that the config asks for. A server may offer other tools in an episode
        than at the check, so a problem with them is an error of the episode."""
        server, offered = f"MCP server {str(self._address)!r}", {t.name: t for t in session.tools}
        if len(offered) < len(session.tools):
            raise EnvironmentFault(f"{server} has several tools of one name")
        if missing := [name for name in self._names or () if name not in offered]:
            has = printable(", ".join(offered))[:MAX_LISTED_CHARACTERS] or "none"
            raise EnvironmentFault(f"{server} has no tool {missing[0]!r}; it has {has}")
        chosen = offered if self._names is None else {name: offered[name] for name in self._names}
        try:
            for name, tool in chosen.items():
                check_parameters(name, tool.inputSchema)
        except ConfigError as error:
            raise EnvironmentFault(f"{server}: {error}") from error
        return [
            OpenTool(
                tool_schema(name, tool.inputSchema, tool.description), partial(_call, session, name)
            )
            for name, tool in chosen.items()
        ]


async def _call(session: McpSession, name: str, arguments: dict[str, Any]) -> ToolResult:
    from mcp import McpError

    try:
        result = await session.call(name, arguments)
    except (McpConnectionLost, McpError) as error:
        raise ToolFault(f"Error: {error}") from error
    text = "\n".join(map(_part_text, result.content))
    if not result.content and result.structuredContent is not None:
        text = json.dumps(result.structuredContent, ensure_ascii=False)
    if result.isError:
        raise ToolFault(text or "Error: the tool failed and said nothing")
    return ToolResult(text, parts=_parts(result))


def _part_text(part: ContentBlock) -> str:
    """Returns the text of a part of an answer; any other part is named and omitted."""
    whole = part.resource if part.type == "resource" else part
    text = getattr(whole, "text", None)
    return f"({part.type} left out: only text can be read)" if text is None else text


def _parts(result: CallToolResult) -> list[dict[str, Any]]:
    """Returns an answer with images as parts of a message, and an empty list for any other."""
    if all(part.type != "image" for part in result.content):
        return []
    return [
        openai_image({"type": "image", "source": {"type": "base64", "data": part.data}})
        if part.type == "image"
        else {"type": "text", "text": _part_text(part)}
        for part in result.content
    ]
