"""Runs environments in a separate process: ``python -m ajet.core.environment.worker``.

    {"number": 1, "environment": 1, "call": "make", "env_type": "frozen_lake", …}
      ->  {"number": 1, "result": "You stand on a frozen lake. …"}
    {"number": 2, "environment": 1, "call": "step", "action": "Left"}
      ->  {"number": 2, "result": ["You are at …", 0.0, false, …]}  or  {"number": 2, "fault": "…"}

The socket is the process's standard input; the process ends with it. isolated.py is the other side,
and has the deadlines.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.core.environment.isolated import MAX_MESSAGE_BYTES, pack_frame
from ajet.core.environment.live import ThreadEnvironment
from ajet.core.environment.registry import environment_maker
from ajet.core.errors import AjetError, EnvironmentFault


class WorkerEnvironments:
    """Holds the environments of this process, by number."""

    def __init__(self) -> None:
        self._environments: dict[int, ThreadEnvironment] = {}

    async def answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        number = message["number"]
        try:
            return {"number": number, "result": await self._call(message)}
        except (EnvironmentFault, AjetError) as fault:
            return {"number": number, "fault": str(fault)}

    async def _call(self, message: Mapping[str, Any]) -> Any:
        key, call = message["environment"], message["call"]
        if call == "make":
            maker = environment_maker(
                message["env_type"],
                message["env_config"],
                [Path(folder) for folder in message["base_dirs"]],
                message["env_type"],
            )
            environment = self._environments[key] = ThreadEnvironment(maker, step_timeout_s=None)
            await environment.make()
            return environment.instruction
        environment = self._environments[key]
        match call:
            case "reset":
                return await environment.reset(message["seed"], message["options"])
            case "step":
                return await environment.step(message["action"])
            case "render":
                return pack_frame(await environment.render())
            case _:
                return await self._environments.pop(key).close()


async def serve(sock: socket.socket) -> None:
    """Answers messages concurrently, until the socket ends."""
    reader, writer = await asyncio.open_connection(sock=sock, limit=MAX_MESSAGE_BYTES)
    environments, answering = WorkerEnvironments(), set[asyncio.Task[None]]()

    async def answer(message: Mapping[str, Any]) -> None:
        writer.write(json.dumps(await environments.answer(message)).encode() + b"\n")

    while line := await reader.readline():
        task = asyncio.create_task(answer(json.loads(line)))
        answering.add(task)
        task.add_done_callback(answering.discard)


def _socket_of_stdin() -> socket.socket:
    """Moves the socket to a file descriptor that the environments' children do not inherit, and
    leaves standard input empty."""
    sock = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return sock


if __name__ == "__main__":
    try:
        asyncio.run(serve(_socket_of_stdin()))
    finally:
        os._exit(0)  # the threads of environments may block for ever
