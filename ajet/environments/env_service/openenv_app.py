"""Serves an environment in OpenEnv's protocol, for its clients and for other trainers.

A connection is one session with a new environment, which ends with the connection. Calls run as in
a training run (core/environment/live.py): in a thread if a class may wait, with a time limit.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ajet.core.environment.live import LiveEnvironment, open_environment
from ajet.core.environment.registry import EnvironmentMaker
from ajet.core.environment.returns import text_alone
from ajet.core.errors import EnvironmentFault

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.websockets import WebSocket

MAX_SESSIONS = 256
MAX_MESSAGE_BYTES = 1 << 20
"""The limit on a client's messages, for uvicorn's ws_max_size."""
Message = dict[str, Any]


class Reset(BaseModel):
    """The data of a `reset`; other options are ignored, as by OpenEnv's server."""

    seed: int | None = Field(None, ge=0, lt=2**63)
    episode_id: str | None = Field(None, max_length=255)
    split: str = "train"


class TextAction(BaseModel):
    """The action of every environment of ajet."""

    model_config = ConfigDict(extra="forbid")

    action: str = Field(description="The action, in the form that the instruction shows.")
    metadata: dict[str, Any] = {}


class TextObservation(BaseModel):
    """The observation of every environment of ajet."""

    text: str
    metadata: dict[str, Any] = {}


class State(BaseModel):
    """The state of a session."""

    episode_id: str | None = None
    step_count: int = 0


class Session:
    """Turns the messages of one connection, which is one episode, into calls of its environment.

        {"type": "reset", "data": {"seed": 7, "split": "train"}}
        {"type": "step", "data": {"action": "Left"}}
        {"type": "state"}, {"type": "close"}
    ->  {"type": "observation", "data": {"observation": {"text": "…", "metadata": {…}}, …}}

    `metadata` has the instruction (of reset), and metrics and truncated (of a step)."""

    def __init__(self, environment: LiveEnvironment) -> None:
        self._environment = environment
        self._state = State()
        self._is_over = True

    async def answer(self, text: str) -> Message | None:
        """Returns the answer to a message; None if the client closes the session."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            return _error("INVALID_JSON", "the message is not JSON")
        message_type = message.get("type") if isinstance(message, dict) else None
        if message_type == "close":
            return None
        if message_type == "state":
            return {"type": "state", "data": self._state.model_dump()}
        if message_type not in ("reset", "step"):
            return _error("UNKNOWN_TYPE", "the type must be reset, step, state or close")
        try:
            data = message.get("data", {})
            if message_type == "reset":
                return await self._reset(Reset.model_validate(data))
            return await self._step(TextAction.model_validate(data))
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            path = ".".join(map(str, first["loc"]))
            return _error("VALIDATION_ERROR", f"Invalid message: {path}: {first['msg']}")
        except EnvironmentFault as fault:
            return _error("EXECUTION_ERROR", str(fault))

    async def _reset(self, request: Reset) -> Message:
        seed = random.SystemRandom().getrandbits(31) if request.seed is None else request.seed
        reset_result = await self._environment.reset(seed, {"split": request.split})
        self._state = State(episode_id=request.episode_id or uuid4().hex)
        self._is_over = False
        instruction = reset_result.instruction  # of this episode, if they differ
        if instruction is None:
            instruction = self._environment.instruction
        return _observed(text_alone(reset_result), None, False, {"instruction": instruction})

    async def _step(self, request: TextAction) -> Message:
        if self._is_over:
            return _error("EXECUTION_ERROR", "the episode is over, or has not begun: send a reset")
        step = await self._environment.step(request.action)
        self._state.step_count += 1
        self._is_over = step.terminated or step.truncated
        metadata: dict[str, Any] = {"truncated": step.truncated, "metrics": dict(step.metrics)}
        if "success" in step.metrics:
            metadata["success"] = step.metrics["success"] > 0
        return _observed(text_alone(step), step.reward, self._is_over, metadata)


def make_openenv_app(
    maker: EnvironmentMaker, step_timeout_s: float = 60.0, max_sessions: int = MAX_SESSIONS
) -> Starlette:
    """Returns the application: uvicorn.run(app)."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route, WebSocketRoute
    from starlette.websockets import WebSocketDisconnect

    sessions: set[WebSocket] = set()

    def fixed(content: Message) -> Callable[[Any], Any]:
        async def endpoint(request: Any) -> Any:
            return JSONResponse(content)

        return endpoint

    async def session(socket: WebSocket) -> None:
        await socket.accept()
        if len(sessions) >= max_sessions:
            message = f"{max_sessions} sessions are open; close one"
            await socket.send_json(_error("CAPACITY_REACHED", message))
            await socket.close()
            return
        sessions.add(socket)
        try:
            async with open_environment(maker, "auto", step_timeout_s) as environment:
                client = Session(environment)
                while (answer := await client.answer(await socket.receive_text())) is not None:
                    await socket.send_json(answer)
            await socket.close()
        except EnvironmentFault as fault:
            await socket.send_json(_error("FACTORY_ERROR", str(fault)))
            await socket.close()
        except (WebSocketDisconnect, KeyError):  # KeyError: bytes instead of text
            pass
        finally:
            sessions.discard(socket)

    metadata = {"name": maker.env_type, "description": f"{maker.env_type} of ajet"}
    schemas = {
        "action": TextAction.model_json_schema(),
        "observation": TextObservation.model_json_schema(),
        "state": State.model_json_schema(),
    }
    routes = [
        Route("/health", fixed({"status": "healthy"})),
        Route("/schema", fixed(schemas)),
        Route("/metadata", fixed(metadata)),
        WebSocketRoute("/ws", session),
    ]
    return Starlette(routes=routes)


def _observed(text: str, reward: float | None, is_over: bool, metadata: Message) -> Message:
    data = {
        "observation": {"text": text, "metadata": metadata},
        "reward": reward,
        "done": is_over,
        "metadata": metadata,
    }
    return {"type": "observation", "data": data}


def _error(code: str, message: str) -> Message:
    return {"type": "error", "data": {"code": code, "message": message}}
