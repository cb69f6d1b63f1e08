"""Talks to a resources server of NeMo Gym for one episode.

Time and size of an answer are limited. Any unexpected answer is an EnvironmentFault of one line,
except a tool's, which the model sees.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self
from urllib.parse import quote, urlsplit

from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from ajet.core.config.section import Section
from ajet.core.errors import ConfigError, EnvironmentFault
from ajet.core.errors.codes import Code
from ajet.core.text.error_text import one_line

if TYPE_CHECKING:
    import httpx

    from ajet.core.config import AjetConfig

RESERVED = ("seed_session", "verify", "close_session", "aggregate_metrics", "mcp")
"""Paths that are not tools, which a model must not be able to call."""
MAX_ANSWER_BYTES = 16 << 20


class NemoGymSection(Section):
    url: str = Field(default="", description="The address of the resources server. Required.")
    agent: Literal["simple", "gymnasium"] = Field(
        default="simple",
        description="The agent of NeMo Gym that the server is made for: simple (tools, then "
        "/verify) or gymnasium (/reset, then /step after each reply).",
    )
    timeout_s: float = Field(default=60.0, gt=0, description="The time limit of one call.")

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        """Returns the section of the config; raises ConfigError if it is missing or wrong."""
        section = cls.from_sections(config.user_sections(), "nemo_gym")
        if urlsplit(section.url).scheme not in ("http", "https"):
            raise ConfigError(
                f"nemo_gym.url: {section.url!r} is not the address of a resources server: write "
                "http://HOST:PORT",
                code=Code.ENVIRONMENT_SERVICE,
            )
        return section


class Verdict(NamedTuple):
    """The answer of `/verify`: the reward, and its other numbers."""

    reward: float
    metrics: Mapping[str, float]


class ToolOutput(BaseModel):
    """The answer to a call in the model's reply, if the server runs tools itself."""

    call_id: str
    output: str


class StepInfo(BaseModel):
    tool_outputs: list[ToolOutput] = []
    supports_explicit_close: bool = False


class Step(BaseModel):
    """The answer of `/reset` or `/step`: what the model sees next, the reward of this step, and
    whether the episode is over."""

    model_config = ConfigDict(strict=True)

    observation: str | None = None
    reward: FiniteFloat = 0.0
    terminated: bool = False
    truncated: bool = False
    info: StepInfo = StepInfo()


class GymSession:
    """One episode's session with a server; `params` are those of the row's request.

        POST /seed_session  the row                      a cookie names the session from here on
        POST /TOOL          the arguments of a call      the answer's text is the tool's
        POST /verify        the row and `response`  ->   {"reward": 1.0, …}

    or, for a server that steps (its GymnasiumServer, `nemo_gym.agent: gymnasium`):

        POST /reset         the row                 ->   {"observation": "Your hand: 9", …}
        POST /step          the row and `response`  ->   {"observation": …, "reward": 0.0, …}
    """

    def __init__(self, client: httpx.AsyncClient, row: Mapping[str, Any]) -> None:
        self._client = client
        self._row = dict(row)
        self.params: Mapping[str, Any] = row.get("responses_create_params") or {}
        self._must_close = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, section: NemoGymSection, row: Mapping[str, Any]
    ) -> AsyncIterator[GymSession]:
        from ajet.core.net.http_client import LimitedAsyncClient

        async with LimitedAsyncClient(
            base_url=section.url, timeout=section.timeout_s, max_answer_bytes=MAX_ANSWER_BYTES
        ) as client:
            session = cls(client, row)
            try:
                yield session
            finally:
                if session._must_close:
                    try:
                        await session._post("close", {})
                    except EnvironmentFault as fault:  # the episode's result is fixed by now
                        logger.warning("{}", fault)

    async def seed(self) -> None:
        await self._answer("seed_session", self._row)

    async def reset(self) -> Step:
        """Begins an episode of steps, and returns the first observation."""
        first = await self._step("reset", self._row)
        self._must_close = first.info.supports_explicit_close
        return first

    async def step(self, response: Mapping[str, Any]) -> Step:
        """Sends one reply of the model, and returns the step that it made."""
        return await self._step("step", self._row | {"response": dict(response)})

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        if tool in RESERVED:
            return f"Error: there is no tool {tool}"
        answer = await self._post(quote(tool, safe=""), arguments)
        return f"Error: {answer.text}" if answer.is_error else answer.text

    async def verify(self, response: Mapping[str, Any]) -> Verdict:
        """Returns the server's verdict on the episode. Raises EnvironmentFault if the server could
        not measure it (`mask_sample`)."""
        answer = await self._object("verify", self._row | {"response": dict(response)})
        if not _is_number(answer.get("reward")):
            raise EnvironmentFault("nemo_gym: verify: the answer has no finite reward")
        if answer.get("mask_sample") is True:
            reason = " ".join(
                str(answer.get("failure_reason") or answer.get("failure_kind")).split()
            )
            raise EnvironmentFault(f"nemo_gym: verify: not measured: {reason[:300]}")
        metrics = {
            name: float(value)
            for name, value in answer.items()
            if name not in (*self._row, "reward", "mask_sample") and _is_number(value)
        }
        return Verdict(float(answer["reward"]), metrics)

    async def _step(self, path: str, body: Mapping[str, Any]) -> Step:
        try:
            return Step.model_validate(await self._object(path, body))
        except ValidationError as error:
            raise EnvironmentFault(f"nemo_gym: {path}: {one_line(error)}") from error

    async def _object(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._answer(path, body)
        try:
            value = json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            raise EnvironmentFault(f"nemo_gym: {path}: not JSON: {one_line(error)}") from error
        if not isinstance(value, dict):
            raise EnvironmentFault(f"nemo_gym: {path}: the answer is not a JSON object")
        return value

    async def _answer(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        answer = await self._post(path, body)
        if answer.is_error:
            reason = " ".join(answer.text.split())[:300]
            raise EnvironmentFault(f"nemo_gym: {path}: HTTP {answer.status_code}: {reason}")
        return answer

    async def _post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        import httpx

        try:
            return await self._client.post(f"/{path}", json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EnvironmentFault(f"nemo_gym: {path}: {one_line(error)}") from error


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False
