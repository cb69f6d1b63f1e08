"""Talks to a resources server of NeMo Gym for the time of one episode.

    POST /seed_session  the row                       a cookie names the session from here on
    POST /TOOL          the arguments of a call       the answer's text is the tool's
    POST /verify        the row and `response`   ->   {"reward": 1.0, …}

Every call has a time limit, and its answer a size limit; whatever else comes back is an
EnvironmentFault of one line, except what a tool answers, which the model is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import quote, urlsplit

from pydantic import Field

from ajet.core.config.section import Section
from ajet.core.error_codes import Code
from ajet.core.error_text import one_line
from ajet.core.errors import ConfigError, EnvironmentFault

if TYPE_CHECKING:
    import httpx

    from ajet.core.config import AjetConfig

RESERVED = ("seed_session", "verify", "close_session", "aggregate_metrics", "mcp")
"""Paths that are no tools, which a model must not be able to call."""
MAX_ANSWER_BYTES = 16 << 20


class NemoGymSection(Section):
    """Configures `nemo_gym:`, a section beside `ajet:`."""

    url: str = Field(default="", description="The address of the resources server. Required.")
    timeout_s: float = Field(default=60.0, gt=0, description="The time limit of one call.")

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the section of the config. Raises ConfigError where it is missing or wrong."""
        section = cls.of_user(config.user_sections(), "nemo_gym")
        if urlsplit(section.url).scheme not in ("http", "https"):
            raise ConfigError(
                f"nemo_gym.url: {section.url!r} is no address of a resources server: write "
                "http://HOST:PORT",
                code=Code.ENVIRONMENT_SERVICE,
            )
        return section


class Verdict(NamedTuple):
    """Holds what `/verify` said: the reward, and its other numbers."""

    reward: float
    metrics: Mapping[str, float]


class GymSession:
    """Holds one episode's session with a server."""

    def __init__(self, client: httpx.AsyncClient, row: Mapping[str, Any]) -> None:
        self._client = client
        self._row = dict(row)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, section: NemoGymSection, row: Mapping[str, Any]
    ) -> AsyncIterator[GymSession]:
        """Begins a session with the row, and closes its connections at the end."""
        from ajet.core.http_client import LimitedAsyncClient

        async with LimitedAsyncClient(
            base_url=section.url, timeout=section.timeout_s, max_answer_bytes=MAX_ANSWER_BYTES
        ) as client:
            session = cls(client, row)
            answer = await session._post("seed_session", session._row)
            if answer.is_error:
                raise EnvironmentFault(_refusal("seed_session", answer))
            yield session

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Returns what a tool answers; an error is text too."""
        if tool in RESERVED:
            return f"Error: there is no tool {tool}"
        answer = await self._post(quote(tool, safe=""), arguments)
        return f"Error: {answer.text}" if answer.is_error else answer.text

    async def verify(self, response: Mapping[str, Any]) -> Verdict:
        """Returns the server's judgement of the episode. Raises EnvironmentFault where it says that
        the episode could not be measured (`mask_sample`)."""
        answer = await self._post("verify", self._row | {"response": dict(response)})
        if answer.is_error:
            raise EnvironmentFault(_refusal("verify", answer))
        try:
            said = json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            raise EnvironmentFault(f"nemo_gym: verify: no JSON: {one_line(error)}") from error
        if not isinstance(said, dict) or not _is_number(said.get("reward")):
            raise EnvironmentFault("nemo_gym: verify: the answer has no finite reward")
        if said.get("mask_sample") is True:
            reason = " ".join(str(said.get("failure_reason") or said.get("failure_kind")).split())
            raise EnvironmentFault(f"nemo_gym: verify: not measured: {reason[:300]}")
        metrics = {
            name: float(value)
            for name, value in said.items()
            if name not in self._row and name != "reward" and _is_number(value)
        }
        return Verdict(float(said["reward"]), metrics)

    async def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        import httpx

        try:
            return await self._client.post(f"/{path}", json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EnvironmentFault(f"nemo_gym: {path}: {one_line(error)}") from error


def _refusal(path: str, answer: httpx.Response) -> str:
    return f"nemo_gym: {path}: HTTP {answer.status_code}: {' '.join(answer.text.split())[:300]}"


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
