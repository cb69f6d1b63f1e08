"""Talks to a resources server of NeMo Gym for one episode, and translates between the items of
OpenAI's Responses API, which it speaks, and chat messages."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
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
Message = dict[str, Any]
TEXT_PARTS = ("input_text", "output_text", "text")


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
    """One episode's session with a server; `params` are those of the row's request. Any unexpected
    answer is an EnvironmentFault of one line, except a tool's, which the model sees.

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


def first_messages(params: Mapping[str, Any]) -> list[Message]:
    """Returns the chat messages of a request. Raises EnvironmentFault for items that are not
    messages or calls of functions."""
    instructions, items = params.get("instructions"), params.get("input")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    if not isinstance(items, list):
        raise EnvironmentFault("nemo_gym: responses_create_params has no input")
    return messages + [_message(item) for item in items]


def chat_tools(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = []
    for tool in params.get("tools") or ():
        if not (isinstance(tool, dict) and isinstance(tool.get("name"), str)):
            raise EnvironmentFault("nemo_gym: responses_create_params.tools: a tool has no name")
        function = {
            "name": tool["name"],
            "description": tool.get("description") or "",
            "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
        }
        tools.append({"type": "function", "function": function})
    return tools


def as_response(
    episode_id: str, params: Mapping[str, Any], messages: Sequence[Message]
) -> dict[str, Any]:
    """Returns the episode as the response object that `/verify` takes. `messages` are those after
    the request's."""
    output: list[dict[str, Any]] = []
    for message in messages:
        number = len(output)
        if message["role"] == "tool":
            answer = {"call_id": message["tool_call_id"], "output": message["content"]}
            output.append({"type": "function_call_output", **answer})
            continue
        if message.get("content"):
            text = {"type": "output_text", "text": message["content"], "annotations": []}
            output.append(
                {
                    "type": "message",
                    "id": f"msg_{episode_id}_{number}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [text],
                }
            )
        output += [
            {
                "type": "function_call",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
            for call in message.get("tool_calls") or ()
        ]
    return {
        "id": f"resp_{episode_id}",
        "object": "response",
        "created_at": 0,
        "model": "ajet",
        "status": "completed",
        "output": output,
        "tools": params.get("tools") or [],
        "tool_choice": params.get("tool_choice") or "auto",
        "parallel_tool_calls": params.get("parallel_tool_calls", True),
    }


def _message(item: Any) -> Message:
    item_type = item.get("type", "message") if isinstance(item, dict) else None
    if item_type == "message" and isinstance(item.get("role"), str):
        role = "system" if item["role"] == "developer" else item["role"]
        return {"role": role, "content": _text(item.get("content"))}
    if item_type == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "content": "", "tool_calls": [call]}
    if item_type == "function_call_output":
        content = _text(item.get("output"))
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    raise EnvironmentFault(f"nemo_gym: an input item of type {item_type!r} is not text")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [None]
    text_blocks = [p for p in blocks if isinstance(p, dict) and p.get("type") in TEXT_PARTS]
    texts = [part["text"] for part in text_blocks if isinstance(part.get("text"), str)]
    if len(texts) != len(blocks):
        raise EnvironmentFault("nemo_gym: the content of an input item is not text alone")
    return "\n".join(texts)
