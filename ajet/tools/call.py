"""Runs one call of a user's tool, awaited or in a thread, with a deadline, and returns its text."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from loguru import logger

from ajet.core.errors import DataError, EnvironmentFault
from ajet.core.images.forms import data_url, find_image, is_image_part, openai_part
from ajet.core.images.image import NO_LIMITS
from ajet.core.process.bounded_loop import abandon
from ajet.core.text.error_text import message_of, one_line
from ajet.core.trajectory.limits import EndpointFault, EpisodeClosed, EpisodeTruncated
from ajet.core.workflow.bridge import run_in_thread
from ajet.tools.tool import ToolResponse

EPISODE_ENDING_ERRORS = (EnvironmentFault, EndpointFault, EpisodeClosed, EpisodeTruncated)
Result = TypeVar("Result")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call, as the model gets it. `reward` and `metrics` are those that the tool
    returned for this call. An answer with images has `parts`, for a model that sees them; `text`
    and `failed` are for one that reads text alone."""

    text: str
    failed: bool = False
    timed_out: bool = False
    reward: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    parts: list[dict[str, Any]] = field(default_factory=list)


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


class ToolFault(Exception):
    """A tool failed; the message is the text that the model gets."""


async def run_tool_call(work: Coroutine[Any, Any, Any], timeout_s: float) -> ToolResult:
    """Runs a tool's call and returns its result. Errors of the tool and timeouts become failed
    results; errors that end the episode (a limit of the model's tokens, `EnvironmentFault`) are
    raised. A tool that ignores its cancellation, or a thread that blocks, is abandoned."""

    async def result() -> ToolResult:
        value = await work
        return value if isinstance(value, ToolResult) else _result_of(value)

    task = await _run_until_deadline(timeout_s, result())
    if not task.done():
        return ToolResult(f"Error: {_timeout_text(timeout_s)}", failed=True, timed_out=True)
    error = _error_of(task)
    if error is None:
        return task.result()
    if isinstance(error, EPISODE_ENDING_ERRORS):
        raise error
    if isinstance(error, ToolFault):
        return ToolResult(str(error), failed=True)
    logger.debug(f"a tool raised {one_line(error)}")
    message = " ".join(message_of(error).split())
    return ToolResult(f"Error: {type(error).__name__}: {message}".removesuffix(": "), failed=True)


async def run_with_timeout(
    timeout_s: float, work: Coroutine[Any, Any, Any], who: str = "the tool"
) -> Any:
    """Returns the result of `work`; raises `TimeoutError` if it takes longer than `timeout_s`."""
    task = await _run_until_deadline(timeout_s, work)
    if not task.done():
        raise TimeoutError(_timeout_text(timeout_s, who))
    if (error := _error_of(task)) is not None:
        raise error
    return task.result()


async def run_cleanup(timeout_s: float, work: Coroutine[Any, Any, Any], who: str) -> bool:
    """Runs a user's cleanup method and returns whether it succeeded. The episode's result is fixed
    by then, so the caller only counts a failure; it is logged once."""
    try:
        await run_with_timeout(timeout_s, work, who)
    except Exception as error:  # noqa: BLE001  # the user's code, after the episode's end
        if who not in _warned:
            _warned.add(who)
            logger.warning(f"{who} failed (later failures are counted): {one_line(error)}")
        return False
    return True


async def gather_or_cancel(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Returns the results in order. If one coroutine raises, the others are cancelled first."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # Nothing of the episode may still run when its error is handled.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def invoke(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls the user's function: a coroutine function is awaited, any other runs in a new
    thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)

    def call_and_drain() -> Any:
        value = function(*args, **kwargs)
        # A generator does its work while it is read, so it is read in the thread, too.
        return list(value) if inspect.isgenerator(value) else value

    result = await run_in_thread(call_and_drain)
    if inspect.isasyncgen(result):
        return [item async for item in result]
    return await result if inspect.isawaitable(result) else result


def as_tool_result(value: Any) -> ToolResult:
    """Returns the result of a tool class, which may be verl's `(answer, step_reward, metrics)`."""
    if isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], dict | None):
        answer, reward, metrics = value
        reward = None if reward is None else float(reward)
        return replace(_result_of(answer), reward=reward, metrics=dict(metrics or {}))
    return _result_of(value)


def openai_image(part: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part with an image in OpenAI's form; for a refused image, a text that says why."""
    try:
        image = find_image(part, NO_LIMITS)
    except DataError as error:
        return {"type": "text", "text": f"({error})"}
    if isinstance(image, int):
        return {"type": "text", "text": "(an image is refused: it has no data)"}
    return openai_part(data_url(image))


def _result_of(value: Any) -> ToolResult:
    parts = _parts(value)
    try:
        return ToolResult(as_text(value), parts=parts)
    except ToolFault as fault:
        if not parts:
            raise
        return ToolResult(str(fault), failed=True, parts=parts)


def _parts(value: Any) -> list[dict[str, Any]]:
    """Returns an answer with images as parts of a message, and an empty list for any other."""
    if _is_response(value):
        if value.video or not value.image:
            return []
        text = as_text(value.text)
        images = [openai_image({"type": "image", "image": image}) for image in value.image]
        return [*([{"type": "text", "text": text}] if text else []), *images]
    blocks = getattr(value, "content", None)  # AgentScope's ToolResponse
    if not isinstance(blocks, list) or not any(map(is_image_part, blocks)):
        return []
    return [
        openai_image(block)
        if is_image_part(block)
        else {"type": "text", "text": as_text(block.get("text"))}
        for block in blocks
    ]


def _is_response(value: Any) -> bool:
    """Tells whether the value is a `ToolResponse`, ajet's or verl's."""
    return all(hasattr(value, attribute.name) for attribute in fields(ToolResponse))


def as_text(value: Any) -> str:
    """Returns text, bytes and responses as their text, other values as JSON: 42, {"n": 42}."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict) and value.keys() == {"text"}:
        return as_text(value["text"])
    if _is_response(value):
        response: Any = value
        if response.image or response.video:
            raise ToolFault("Error: the tool answered with an image or a video: answers are text")
        return as_text(response.text)
    if isinstance(blocks := getattr(value, "content", None), list):  # AgentScope's ToolResponse
        return "".join(as_text(block.get("text")) for block in blocks)
    return json.dumps(value, ensure_ascii=False, default=_text_of_object)


def _text_of_object(value: Any) -> str:
    """Returns the object's `str()`. Text with a memory address is refused: the address differs from
    process to process, and so would the model's prompt."""
    text = str(value)
    if _ADDRESS.search(text):
        class_name = type(value).__name__
        raise ToolFault(f"Error: the tool returned an object ({class_name}) that has no text form")
    return text


async def _run_until_deadline(
    timeout_s: float, work: Coroutine[Any, Any, Any]
) -> asyncio.Task[Any]:
    """Runs `work` as a task and returns it when it is done, or after it was cancelled and abandoned
    at the deadline."""

    async def without_system_exit() -> Any:
        try:
            return await work
        except SystemExit as error:  # a tool must not end the run
            raise RuntimeError(f"the tool called sys.exit({error.code!r})") from error

    task = asyncio.create_task(without_system_exit())
    try:
        # `asyncio.wait_for` would wait for the cancelled task, and a tool may ignore cancellation.
        await asyncio.wait({task}, timeout=timeout_s)
    finally:
        if not task.done():
            abandon(task)
    return task


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return RuntimeError("the tool cancelled itself") if task.cancelled() else task.exception()


def _timeout_text(timeout_s: float, who: str = "the tool") -> str:
    return f"{who} did not answer within {timeout_s:g} s"
